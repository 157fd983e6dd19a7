// Import and export of Hugging Face models, streaming: import needs a few MiB (for Conv1D, which is
// transposed, one tensor), export one tensor (twice when converting dtypes).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/hf/export_tokenizer.h"

namespace teratron {

struct HfImport {
  std::filesystem::path source;       // folder with config.json and weights (weight_files.h)
  std::filesystem::path destination;  // --save folder; the checkpoint is iter_0000000
  std::optional<Dtype> dtype;         // of the result; default: as in the files
};

struct HfExport {
  std::filesystem::path source;       // an iter_* directory
  std::filesystem::path destination;  // must not exist, or be empty
  std::optional<Dtype> dtype;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  HfTokenizer tokenizer;
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

/// Whether export_hf() can succeed, before there is a checkpoint: UserError(checkpoint) if no model of
/// transformers has these settings and tensors, UserError(config) if the folder is not empty.
void check_export(const CheckpointInfo& info, const std::filesystem::path& destination);

}  // namespace teratron
