// Import and export of checkpoints, streaming: needs the memory of a few blocks and, where a tensor is cut or
// transposed, of that tensor. Long conversions show their progress (byte_progress.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/hf/export_tokenizer.h"
#include "teratron/hf/weight_files.h"

namespace teratron {

struct ConversionReport {
  std::filesystem::path result;
  int64_t tensors = 0;
  int64_t elements = 0;
  std::vector<std::string> notices = {};  // for the user
  bool can_continue = false;              // the result has the state of a training
};

struct CheckpointImport {
  std::filesystem::path destination;  // --save folder; the checkpoint keeps its iteration
  std::optional<Dtype> dtype = {};    // of the weights; default: as they are
};

/// Saves a checkpoint of another format as one of ours.
ConversionReport import_checkpoint(const CheckpointSource& source, const CheckpointImport& request);

/// A folder of Hugging Face, as iteration 0: weights and settings, including the paths of the folder's
/// tokenizer; no optimizer state or counters (train with --finetune).
ConversionReport import_hf(const std::filesystem::path& folder, const CheckpointImport& request);

struct HfExport {
  std::filesystem::path destination;           // must not exist, or be empty
  std::optional<Dtype> dtype = {};             // default: as the weights are
  std::map<std::string, Dtype> dtype_of = {};  // of single tensors, by their names in the folder
  WeightShards shards = {.max_bytes = int64_t{5} * 1000 * 1000 * 1000};
  HfTokenizer tokenizer = {};
};

/// Writes config.json, weights (weight_files.h) and tokenizer files, committed by one rename.
ConversionReport export_hf(const CheckpointSource& source, const HfExport& request);

/// Whether export_hf() can succeed, before there is a checkpoint: UserError(checkpoint) if no model of
/// transformers has these settings and tensors, UserError(config) if the folder is not empty.
void check_export(const CheckpointInfo& info, const std::filesystem::path& destination);

}  // namespace teratron
