// The index of a GPT dataset: Megatron-LM's three arrays, value for value.
//
//   document_index[e]    sequence ids of all epochs, shuffled
//   sample_index[s]      (position in document_index, token offset) where sample s starts; M + 1 rows
//   shuffle_index[i]     row of sample_index of the i-th sample
//
// One numpy RandomState(seed) shuffles the documents, then the samples. A sample has sequence_length + 1
// tokens, of which the last is also the first of the next sample.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "teratron/data/indexed/index_array.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/data/splits.h"

namespace teratron {

class IndexedDataset;

struct GPTIndexOptions {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  std::optional<int64_t> samples = {};  // requested; nullopt: one epoch
  bool add_extra_token = true;          // samples hold sequence_length + 1 tokens and overlap by one
  /// False keeps a short last sample; the number of samples is then rounded up in fp32, as in Megatron-LM.
  bool drop_last = true;
};

struct GPTIndex {
  int64_t tokens_per_epoch = 0;
  int64_t epochs = 0;
  IndexArray document_index;  // i32
  IndexArray sample_index;    // i32 (i64 if positions need it), two columns
  IndexArray shuffle_index;   // u32 (i64 from 2^32 - 2 samples on)
  int64_t samples() const { return shuffle_index.rows(); }
};

/// Builds the index of the sequences of `range`, whose lengths in tokens are `lengths`. Throws
/// UserError(data) if the range has too few tokens for a sample.
GPTIndex build_gpt_index(SequenceRange range, std::span<const int32_t> lengths,
                         const GPTIndexOptions& options, IndexProgress* progress = nullptr);

/// The document index of all epochs, and the lengths of the sequences from `first_sequence` on.
struct DocumentOrder {
  std::span<const int32_t> documents;
  std::span<const int32_t> lengths;
  int64_t first_sequence = 0;
  int64_t length_at(size_t position) const {
    return lengths[static_cast<size_t>(documents[position] - first_sequence)];
  }
};

/// The sample index over `order`, which must have the tokens of `samples` samples.
IndexArray build_sample_index(const DocumentOrder& order, const GPTIndexOptions& options, int64_t samples,
                              IndexProgress* progress = nullptr);

/// build_gpt_index through a cache (cached_index()). Arrays are .npy files as written by Megatron-LM.
GPTIndex cached_gpt_index(const IndexedDataset& dataset, SequenceRange range, const GPTIndexOptions& options,
                          const IndexCache& cache);

}  // namespace teratron
