// The columns of BERT's samples: sentence pairs with masked tokens, and a mock of them.
#pragma once

#include <memory>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/models/masked_data/masked_dataset.h"

namespace teratron {

/// The most masked tokens of a sample.
int64_t most_predictions(int64_t sequence_length, double masking_probability);

struct BertSchemaOptions {
  int64_t sequence_length = 0;
  int64_t predictions = 0;     // most_predictions()
  bool sentence_pairs = true;  // types and is_random
  bool padding = true;         // rows may be shorter than the sequence length
};
/// tokens, types; segment_start: the tokens of a row are a segment, its padding another; masked_positions,
/// masked_labels and masked_loss_mask of the predictions, filled up with zeros; is_random (the segments are
/// swapped).
BatchSchema bert_schema(const BertSchemaOptions& options);

/// Fills those of the columns that the schema has.
void fill_bert_columns(const BertSample& from, const Sample& to);

/// Samples of Megatron-LM's BertDataset.
class BertSamples : public Dataset {
 public:
  explicit BertSamples(BertDataset samples) : samples_(std::move(samples)) {}
  int64_t size() const override { return samples_.size(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return samples_.describe(); }

 private:
  BertDataset samples_;
};

/// Synthetic pairs for --mock-data that fill the row: each segment repeats four words, eight terms of an
/// arithmetic progression modulo the vocabulary size, whose start and step are drawn from (seed, i). Segments
/// are swapped and words masked as in text. A model soon learns to copy words.
class MockBertDataset : public Dataset {
 public:
  /// `options`: at least 8 tokens; without special tokens ids 0 to 3 are these.
  MockBertDataset(int64_t samples, MaskedDatasetOptions options);
  int64_t size() const override { return samples_; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  int64_t samples_;
  MaskedDatasetOptions options_;
};

}  // namespace teratron
