// The three datasets of a T5 run, built from the data flags.
#pragma once

#include "teratron/data/dataset_builder.h"
#include "teratron/models/masked_data/masked_dataset.h"

namespace teratron {

struct T5DataOptions {
  DataSources sources;
  MaskedDatasetOptions samples;
  double short_sequence_probability = 0.1;
  std::string tokenizer;  // its type, for errors
  IndexCache cache = {};  // of sample mappings
};

/// Documents are divided into splits, sentences of a document make up samples (masked_data/).
/// UserError(config) for a tokenizer without padding, begin, end or sentinel tokens.
Datasets build_t5_datasets(const T5DataOptions& options);

}  // namespace teratron
