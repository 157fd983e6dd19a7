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
  /// The vocabulary of the user's tokenizer, whose type is the saved one or else the family's; 0: no
  /// tokenizer. May add to the settings.
  std::function<int64_t(const std::string& type, nlohmann::json& settings)> vocabulary = nullptr;
};

class ImportedMegatron : public CheckpointSource {
 public:
  /// What the user should know of what is not converted, or was assumed.
  virtual const std::vector<std::string>& notices() const = 0;
};

/// UserError(checkpoint) for tensors that the model does not have, or a state that is not that of its
/// parameters.
std::unique_ptr<ImportedMegatron> import_megatron(const MegatronImport& request);

}  // namespace teratron
