// Which tokens make up sample i of a GPT dataset: Megatron-LM's three index arrays, value for value.
//
//   document_index[e]    sequence ids of all epochs, shuffled
//   sample_index[s]      (position in document_index, token offset) where sample s starts; M + 1 rows
//   shuffle_index[i]     which sample is the i-th
//
// One numpy RandomState(seed) is drawn for the document shuffles, then for the sample shuffles. A sample
// takes sequence_length + 1 tokens; the last token is also the first one of the next sample.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/data/indexed/npy.h"

namespace teratron {

class IndexedDataset;

/// Half-open range of sequences.
struct SequenceRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t size() const { return last - first; }
};

/// Shares of train, valid and test out of a --split string: its numbers, padded with zeros to three,
/// normalised. Throws UserError(config) for more than three, none above zero or text that holds no number.
std::array<double, 3> parse_split(std::string_view split);

/// Sequences of each split: bounds are fractions x sequences, rounded half to even. Nothing for a share of 0.
std::array<std::optional<SequenceRange>, 3> split_ranges(const std::array<double, 3>& shares,
                                                         int64_t sequences);

struct GPTIndexOptions {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  std::optional<int64_t> samples = {};  // wanted; absent: one epoch
  bool add_extra_token = true;          // samples hold sequence_length + 1 tokens and overlap by one
  /// False keeps a last sample that is too short; the count of samples is then rounded up in 32-bit floating
  /// point as Megatron-LM does.
  bool drop_last = true;
};

struct GPTIndex {
  int64_t tokens_per_epoch = 0;
  int64_t epochs = 0;
  IndexArray document_index;  // i32
  IndexArray sample_index;    // i32 (i64 when a position or an offset needs it), two columns
  IndexArray shuffle_index;   // u32 (i64 from 2^32 - 2 samples on)
  int64_t samples() const { return shuffle_index.rows(); }
};

/// Builds the index of the sequences of `range`, whose lengths in tokens are `lengths`.
/// Throws UserError(data) when the range holds no tokens or the samples cannot be counted.
GPTIndex build_gpt_index(SequenceRange range, std::span<const int32_t> lengths,
                         const GPTIndexOptions& options);

/// The documents of all epochs one after the other, and the lengths of the sequences from `first_sequence` on.
struct DocumentRow {
  std::span<const int32_t> documents;
  std::span<const int32_t> lengths;
  int64_t first_sequence = 0;
  int64_t length_at(size_t position) const {
    return lengths[static_cast<size_t>(documents[position] - first_sequence)];
  }
};

/// The sample index of a row of documents, which must hold the tokens of `samples` samples.
IndexArray build_sample_index(const DocumentRow& row, const GPTIndexOptions& options, int64_t samples);

/// build_gpt_index through a cache folder ("" = none): files are named by a hash of everything that the index
/// depends on, the sizes and times of the data files and a part of their content included; one process
/// builds, others wait for it. Arrays are .npy files as Megatron-LM writes them.
GPTIndex cached_gpt_index(const IndexedDataset& dataset, SequenceRange range, const GPTIndexOptions& options,
                          const std::string& cache_path);

}  // namespace teratron
