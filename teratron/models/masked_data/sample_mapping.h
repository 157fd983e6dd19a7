// The sentences of each BERT and T5 sample: Megatron-LM's sample mapping (build_mapping), row for row.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/data/indexed/index_array.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/splits.h"

namespace teratron {

class IndexedDataset;

struct SampleMappingOptions {
  int64_t max_epochs = INT32_MAX - 1;
  int64_t max_samples = 0;  // stops at the end of the epoch that reaches it
  int64_t max_length = 0;   // tokens of a sample without special tokens; > 1
  double short_sequence_probability = 0.1;
  uint32_t seed = 1234;
  int64_t min_sentences = 1;
};

/// Sentences [first, last) of one document and the number of tokens to keep.
struct SampleMappingRow {
  int64_t first = 0;
  int64_t last = 0;
  int64_t target_length = 0;
  bool operator==(const SampleMappingRow&) const = default;
};

/// Row i of a sample mapping.
SampleMappingRow row_at(const IndexArray& mapping, int64_t i);

/// Groups the sentences of `documents`, epoch by epoch, until each sample reaches its target length, then
/// shuffles. Skips documents with too few sentences, and those with several of which one exceeds 512 tokens.
/// The target is max_length, or shorter with the given probability: one draw of mt19937(seed) per document
/// used and per row. u32 with three columns, as Megatron-LM stores it; i64 for more than 2^32 sentences.
/// UserError(data) if an epoch yields no samples.
IndexArray build_sample_mapping(const IndexedDataset& dataset, SequenceRange documents,
                                const SampleMappingOptions& options, IndexProgress* progress = nullptr);
/// As above, through a cache (cached_index()).
IndexArray cached_sample_mapping(const IndexedDataset& dataset, SequenceRange documents,
                                 const SampleMappingOptions& options, const IndexCache& cache);

}  // namespace teratron
