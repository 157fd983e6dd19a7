// A checkpoint that Megatron-LM wrote, in any of its formats, by our names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/megatron/settings.h"
#include "teratron/megatron/tensor_source.h"

namespace teratron {

class MegatronCheckpoint {
 public:
  virtual ~MegatronCheckpoint() = default;

  /// What the settings of the model follow from.
  virtual MegatronSource source() const = 0;
  /// Weights, and, if the whole optimizer state is there, "optimizer.*" as our checkpoints have it. The
  /// padding of the vocabulary is in it. `settings` are those of the model.
  virtual std::map<std::string, TensorSourcePtr> tensors(const nlohmann::json& settings) const = 0;
  /// Iteration, consumed samples, schedule and loss scale, as our checkpoints have them; empty if there is no
  /// iteration to go on from: a release, whatever its files say.
  virtual nlohmann::json state() const = 0;
  /// "torch, version 3, 2 tensor ranks, 1 stage", "torch_dist".
  virtual std::string format() const = 0;
  /// Whether tensors() has "optimizer.*".
  virtual bool has_optimizer() const = 0;
  /// A line for each key of the files of the first tensor rank: dots for its depth, name, size or value.
  virtual void print_structure(const std::function<void(const std::string&)>& print_line) const = 0;
  /// Compares all bytes with their checksums; returns how many have one. UserError(checkpoint) if they
  /// differ.
  virtual int64_t verify() const = 0;
  /// What the user should know of what is not converted.
  virtual std::vector<std::string> notices() const { return {}; }
};

/// `source` is a --save folder, a folder of one iteration, a zip file of these, or one .pt file. Without
/// `step` the iteration of the tracker file, else the newest. UserError(checkpoint) if parts are missing.
std::unique_ptr<MegatronCheckpoint> open_megatron_checkpoint(const std::filesystem::path& source,
                                                             std::optional<int64_t> step,
                                                             bool with_optimizer);

}  // namespace teratron
