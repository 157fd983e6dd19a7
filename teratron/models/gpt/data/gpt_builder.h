// The three datasets of a GPT run, built from the data flags.
#pragma once

#include <string>

#include "teratron/data/dataset_builder.h"
#include "teratron/models/gpt/data/gpt_dataset.h"

namespace teratron {

struct GPTDataOptions {
  DataSources sources = {};
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  GPTMaskOptions masks = {};  // vocab_size is required for mock data
  bool add_extra_token = true;
  bool drop_last_partial_validation = true;
  IndexCache cache = {};  // of indices
};

/// build_datasets() of sequences. Invalid options are UserError(config).
Datasets build_gpt_datasets(const GPTDataOptions& options);

}  // namespace teratron
