// The columns of T5's samples: text with spans replaced by sentinels, and the spans; and a mock of them.
#pragma once

#include <memory>
#include <string>

#include "teratron/data/dataset.h"
#include "teratron/models/masked_data/masked_dataset.h"

namespace teratron {

struct T5SchemaOptions {
  int64_t encoder_length = 0;
  int64_t decoder_length = 0;
  bool padding = true;  // rows of the encoder may be shorter than its length
};
/// encoder_tokens; encoder_length, the number of them without padding; decoder_tokens, labels and loss_mask.
/// Labels of padding, which the mask hides, are 0.
BatchSchema t5_schema(const T5SchemaOptions& options);

/// Samples of Megatron-LM's T5Dataset.
class T5Samples : public Dataset {
 public:
  T5Samples(std::shared_ptr<const IndexedDataset> data, IndexArray mapping,
            const MaskedDatasetOptions& options);
  int64_t size() const override { return samples_.size(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return description_; }

 private:
  T5Dataset samples_;
  std::string description_;
};

/// Fewest tokens of mock data: four special ones, sentinels and words.
inline constexpr int64_t mock_t5_least_vocabulary = 16;

/// Synthetic samples for --mock-data that fill both rows: the encoder's repeats four words, terms of an
/// arithmetic progression modulo the vocabulary size whose start and step are drawn from (seed, i); the
/// decoder copies its beginning. A model soon learns to copy.
class MockT5Dataset : public Dataset {
 public:
  MockT5Dataset(int64_t samples, const MaskedDatasetOptions& options);
  int64_t size() const override { return samples_; }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

 private:
  int64_t samples_;
  uint32_t seed_;
  int64_t vocabulary_;
};

}  // namespace teratron
