// Hugging Face models in and out, streaming: the memory of one tensor (twice under conversion) is needed.
//
// Importing proves conservation: every element of every tensor of the files goes to exactly one place; a
// tensor that nothing uses, a missing one or a wrong shape is a UserError(checkpoint), all listed at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

/// Name in a Hugging Face folder -> file.
using HfTokenizerFiles = std::map<std::string, std::filesystem::path>;

/// The tokenizer files in a Hugging Face folder, perhaps none.
HfTokenizerFiles hf_tokenizer_files(const std::filesystem::path& folder);

struct HfImport {
  std::filesystem::path source;       // folder with config.json and safetensors
  std::filesystem::path destination;  // --save folder: becomes iter_0000000 in it
  std::optional<Dtype> dtype;         // of the result; each tensor's own otherwise
};

struct HfExport {
  std::filesystem::path source;       // an iter_* directory
  std::filesystem::path destination;  // must not exist, or be empty
  std::optional<Dtype> dtype;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  HfTokenizerFiles tokenizer;        // copied along
  std::optional<int64_t> end_token;  // the tokenizer's, for config.json
};

struct ConversionReport {
  std::filesystem::path result;
  int64_t tensors = 0;
  int64_t elements = 0;
};

/// Weights and settings, among them where the tokenizer lies if the folder has one; optimizer and counters start anew
/// (--finetune).
ConversionReport import_hf(const HfImport& request);

/// config.json, model*.safetensors with index, and tokenizer files; appears in one rename.
ConversionReport export_hf(const HfExport& request);

}  // namespace teratron
