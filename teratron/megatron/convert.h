// Import of checkpoints that Megatron-LM wrote in its format `torch`: weights and settings of GPT, BERT and
// T5, of every checkpoint version, joined from tensor and pipeline ranks. Streaming: needs the memory of one
// tensor, twice.
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
  std::filesystem::path source;  // see open_megatron_files()
  std::optional<int64_t> step;
  std::filesystem::path destination;                   // --save folder; the checkpoint is iter_0000000
  std::optional<Dtype> dtype;                          // of the result; default: as in the files
  nlohmann::json settings = nlohmann::json::object();  // given by the user
  /// The vocabulary of the user's tokenizer, by family ("bert") and the tokenizer type that was saved ("" if
  /// none); 0: no tokenizer. May add to the settings.
  std::function<int64_t(const std::string& family, const std::string& tokenizer, nlohmann::json& settings)>
      vocabulary = nullptr;
};

/// No optimizer state or counters (train with --finetune). UserError(checkpoint) for tensors that the model
/// does not have.
ConversionReport import_megatron(const MegatronImport& request);

}  // namespace teratron
