// The three datasets of a BERT run, built from the data flags.
#pragma once

#include "teratron/data/dataset_builder.h"
#include "teratron/models/masked_data/masked_dataset.h"

namespace teratron {

struct BertDataOptions {
  DataSources sources;
  MaskedDatasetOptions samples;
  double short_sequence_probability = 0.1;
  std::string tokenizer;  // its type, for errors
  IndexCache cache = {};  // of sample mappings
};

/// UserError(config) for contradictions, and for a tokenizer without [CLS], [SEP], [MASK] or [PAD].
void check_bert_data(const BertDataOptions& options);

/// Documents are divided into splits, sentences of a document make up samples (masked_data/). UserError(data)
/// for data without sentence pairs, UserError(config) as check_bert_data().
Datasets build_bert_datasets(const BertDataOptions& options);

}  // namespace teratron
