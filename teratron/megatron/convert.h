// Checkpoints that Megatron-LM wrote, as sources of a conversion: weights and settings of GPT, BERT and T5,
// joined from tensor and pipeline ranks, and the state of their training where all of it is there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint_source.h"

namespace teratron {

struct MegatronImport {
  std::filesystem::path source;  // see open_megatron_checkpoint()
  std::optional<int64_t> step;
  bool optimizer = true;       // false: weights alone
  std::optional<Dtype> dtype;  // that the weights are to have; default: as in the files
  nlohmann::json settings = nlohmann::json::object();  // given by the user
  /// What the checkpoint does not say; in place of what it says, nothing.
  nlohmann::json otherwise = nlohmann::json::object();
  /// The vocabulary of the user's tokenizer, whose type is the saved one or else the family's; 0: no
  /// tokenizer. May add to the settings.
  std::function<int64_t(const std::string& type, nlohmann::json& settings)> vocabulary = nullptr;
  bool saved_vocabulary_first = false;  // a saved size goes before that of the tokenizer
};

class ImportedMegatron : public CheckpointSource {
 public:
  /// What the user should know of what is not converted, or was assumed.
  virtual const std::vector<std::string>& notices() const = 0;
  /// "torch, version 3, 2 tensor ranks, 1 stage".
  virtual const std::string& format() const = 0;
  /// Whether the number of heads was neither saved nor given (assumed_heads).
  virtual bool has_assumed_heads() const = 0;
  /// The model alone: there is no iteration to go on from.
  bool is_release() const { return info().iteration == 0; }
};

/// The notice on a number of heads that is neither saved nor given.
inline constexpr const char* assumed_heads =
    "the checkpoint has no arguments: by its shapes it is NVIDIA's model of 345 million parameters, with 16 "
    "attention heads; --num-attention-heads gives another number";

/// UserError(checkpoint) for tensors that the model does not have, or a state that is not that of its
/// parameters.
std::unique_ptr<ImportedMegatron> import_megatron(const MegatronImport& request);

}  // namespace teratron
