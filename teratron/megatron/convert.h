// Import of checkpoints that Megatron-LM wrote: weights and settings of GPT, BERT and T5, joined from tensor
// and pipeline ranks, and the state of their training where all of it is there. Streaming: needs the memory
// of a few blocks, whatever the sizes of the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/hf/convert.h"

namespace teratron {

struct MegatronImport {
  std::filesystem::path source;  // see open_megatron_checkpoint()
  std::optional<int64_t> step;
  bool optimizer = true;                               // false: weights alone
  std::filesystem::path destination;                   // --save folder; the checkpoint keeps its iteration
  std::optional<Dtype> dtype;                          // of the result; default: as in the files
  nlohmann::json settings = nlohmann::json::object();  // given by the user
  /// The vocabulary of the user's tokenizer, by family ("bert") and the tokenizer type that was saved ("" if
  /// none); 0: no tokenizer. May add to the settings.
  std::function<int64_t(const std::string& family, const std::string& tokenizer, nlohmann::json& settings)>
      vocabulary = nullptr;
};

/// UserError(checkpoint) for tensors that the model does not have, or a state that is not that of its
/// parameters.
ConversionReport import_megatron(const MegatronImport& request);

}  // namespace teratron
