// `teratron finetune --hf DIR --data-path FILE`: the rest from the folder and from usual values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "teratron/hf/weight_map.h"
#include "teratron/train/registry.h"

namespace teratron {

/// The model in the folder of --hf. UserError for a missing flag, a folder without
/// config.json or a model of another kind.
HfModel model_of_hf_flag(std::span<const std::string> args);

/// Flags for what the user left open: 3 epochs, batch 16, learning rate 1e-5 (2e-4 of adapters), cosine decay
/// with 3 % warm-up, bf16 on GPUs, rows of at most 2048 tokens (BERT, T5:
/// 512), 20 log lines, an output folder.
std::vector<std::string> finetune_defaults(std::span<const std::string> args, const JobModel& model);

/// Rows of a step in place of the 16 of the defaults: those that hold about 16 examples of the data, where
/// rows are packed, rounded up to what the data-parallel ranks divide.
struct BatchRows {
  int64_t rows = 16;
  double examples_in_row = 1;
};
BatchRows rows_of_batch(const Arguments& args, const Family& family, int64_t ranks);

/// `finetune --help`: usage, an example, the flags that matter.
std::string finetune_page();

}  // namespace teratron
