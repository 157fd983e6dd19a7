// A Hugging Face folder as a checkpoint: settings and tensors under Megatron-LM's names, read from its files
// in whatever parts a layout asks for, with a few MiB of memory.
//
// Opening it proves conservation: every element of every tensor in the files goes to exactly one place.
// Unused or missing tensors and wrong shapes are listed in one UserError(checkpoint), as is whatever in
// config.json cannot be honoured exactly.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/hf/weight_files.h"
#include "teratron/hf/weight_map.h"

namespace teratron {

/// The model that config.json of a folder describes, and the folder's tokenizer in its settings.
HfModel read_hf_model(const std::filesystem::path& folder);

/// Whether the folder may lack heads of the family (HfFamily::heads), as those of a base model do.
enum class HfHeads : uint8_t { required, may_lack };

class HfCheckpoint final : public CheckpointSource {
 public:
  explicit HfCheckpoint(const std::filesystem::path& folder, HfHeads heads = HfHeads::required);

  /// Iteration 0; the path is the folder.
  const CheckpointInfo& info() const override { return info_; }
  void read(const LocalTensor& target) const override;
  bool reads_in_parts(const std::string& name) const override {
    return !by_name_.at(name)->sources[0].transposed;
  }
  const WeightFiles& files() const { return files_; }
  /// In the order of the forward pass.
  const std::vector<HfTensor>& tensors() const { return tensors_; }
  /// Beginnings of the names of heads that the folder lacks.
  const std::vector<std::string>& missing_heads() const { return missing_heads_; }

 private:
  void use_old_names();
  void use_cuts();
  void leave_out_missing_heads();
  void check() const;
  void read_source(const HfTensor& tensor, size_t source, const LocalTensor& target) const;

  std::filesystem::path folder_;
  HfModel model_;
  WeightFiles files_;
  std::vector<HfTensor> tensors_;
  std::vector<std::string> missing_heads_;
  std::map<std::string, const HfTensor*> by_name_;
  CheckpointInfo info_;
};

/// UserError(config) if the folder that --load names is one of Hugging Face.
void reject_hf_folder(const std::filesystem::path& folder);

/// Opens a folder on every rank, or throws on all what is wrong with it on any.
std::unique_ptr<HfCheckpoint> open_hf(const std::filesystem::path& folder, HostGroup& group,
                                      HfHeads heads = HfHeads::required);

}  // namespace teratron
