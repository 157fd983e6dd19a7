// Which sentences make up a sample of BERT and T5: Megatron-LM's sample map, row for row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "teratron/models/gpt/data/gpt_index.h"

namespace teratron {

class IndexedDataset;

struct SampleMapOptions {
  int64_t max_epochs = INT32_MAX - 1;
  int64_t max_samples = 0;  // no further epoch begins once there are as many
  int64_t max_length = 0;   // tokens of a sample, special tokens not counted; > 1
  double short_sequence_probability = 0.1;
  uint32_t seed = 1234;
  int64_t min_sentences = 1;
};

/// Sentences [first, last) of one document and the number of tokens to keep of them.
struct SampleMapRow {
  int64_t first = 0;
  int64_t last = 0;
  int64_t target_length = 0;
  bool operator==(const SampleMapRow&) const = default;
};

/// Walks over `documents` epoch by epoch, collecting sentences until the target length is reached, then shuffles.
/// Documents with too few sentences, or with several of which one exceeds 512 tokens, are skipped. The target is
/// max_length, or with the given probability shorter: one draw of mt19937(seed) per kept document and per row.
/// UserError(data) when an epoch yields no sample.
std::vector<SampleMapRow> build_sample_map(const IndexedDataset& dataset, SequenceRange documents,
                                           const SampleMapOptions& options);

}  // namespace teratron
