// Import and export of Hugging Face models, streaming: needs the memory of one tensor (twice when converting
// dtypes).
//
// Import proves conservation: every element of every tensor in the files goes to exactly one place. Unused or
// missing tensors and wrong shapes are listed in one UserError(checkpoint).
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

/// The tokenizer files in a Hugging Face folder, with the chat template and generation_config.json, which
/// names special tokens; may be none.
HfTokenizerFiles hf_tokenizer_files(const std::filesystem::path& folder);

struct HfImport {
  std::filesystem::path source;       // folder with config.json and safetensors
  std::filesystem::path destination;  // --save folder; the checkpoint is iter_0000000
  std::optional<Dtype> dtype;         // of the result; default: as in the files
};

struct HfExport {
  std::filesystem::path source;       // an iter_* directory
  std::filesystem::path destination;  // must not exist, or be empty
  std::optional<Dtype> dtype;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  HfTokenizerFiles tokenizer;                             // copied to the folder
  std::map<std::string, std::string> tokenizer_contents;  // written to the folder: name -> contents
  std::optional<int64_t> end_token;                       // the tokenizer's, for config.json
};

struct ConversionReport {
  std::filesystem::path result;
  int64_t tensors = 0;
  int64_t elements = 0;
  std::vector<std::string> notices = {};  // for the user
  bool can_continue = false;              // the result has the state of a training
};

/// Weights and settings, including the paths of the folder's tokenizer; no optimizer state or counters (train
/// with --finetune).
ConversionReport import_hf(const HfImport& request);

/// Writes config.json, model*.safetensors with index, and tokenizer files, committed by one rename.
ConversionReport export_hf(const HfExport& request);

}  // namespace teratron
