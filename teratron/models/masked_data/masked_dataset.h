// Samples for BERT and T5: Megatron-LM's masked datasets, token for token.
//
// Sample i draws only from RandomState((seed + i) mod 2^32), so it does not depend on the samples read
// before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/masked_data/sample_mapping.h"

namespace teratron {

class NumpyRandom;

struct MaskedDatasetOptions {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  double masking_probability = 0.15;
  int64_t max_ngram = 3;          // T5: 10
  bool geometric_ngrams = false;  // geometric distribution of n with p = 0.2 (T5) instead of 1 / n
  bool longer_ngrams = false;     // prefer long n-grams: reverses the probabilities
  /// Tokenizer::continuation_pieces().
  std::vector<bool> continues_word;
  int64_t vocab_size = 0;  // exclusive upper bound of random replacements
  int64_t cls_id = -1, sep_id = -1, mask_id = -1, pad_id = -1;

  bool classification_head = true;  // BERT: next-sentence prediction, needs two sentences

  int64_t decoder_sequence_length = 0;  // T5
  int64_t bos_id = -1, eos_id = -1;     // T5
  std::vector<int64_t> sentinel_ids;    // T5: one per span, in order
};

/// Positions masked together, and their original tokens.
struct MaskedSpan {
  std::vector<int64_t> positions;
  std::vector<int64_t> labels;
};

/// Chooses whole-word n-grams until min(probability x target_length, max(1, round(probability x tokens)))
/// tokens are masked; returns their spans in order of position. Without sentinel_ids (BERT), replaces tokens
/// in place: 80 % by mask_id, 10 % by a random id, 10 % stay.
std::vector<MaskedSpan> mask_tokens(std::vector<int64_t>& tokens, int64_t target_length,
                                    const MaskedDatasetOptions& options, NumpyRandom& random);

/// Seed of the random numbers of sample i.
uint32_t sample_seed(uint32_t seed, int64_t i);

inline constexpr int64_t bert_special_tokens = 3;  // [CLS] A [SEP] B [SEP]

/// All vectors have sequence_length entries.
struct BertSample {
  int64_t tokens = 0;                        // without padding
  std::vector<int64_t> text, types, labels;  // labels: -1 where not masked
  std::vector<int64_t> padding_mask, loss_mask;
  bool is_random = false;  // the two segments are swapped
  bool truncated = false;
};

/// Sets text and types of a pair of segments; `b` may be empty.
void join_pair(BertSample& sample, std::span<const int64_t> a, std::span<const int64_t> b,
               const MaskedDatasetOptions& options);
/// Masks tokens of a joined pair and fills it up.
void mask_pair(BertSample& sample, int64_t target_length, const MaskedDatasetOptions& options,
               NumpyRandom& random);

class BertDataset {
 public:
  BertDataset(std::shared_ptr<const IndexedDataset> data, IndexArray mapping, MaskedDatasetOptions options);
  int64_t size() const { return mapping_.rows(); }
  BertSample get(int64_t i) const;
  /// One line for the log.
  std::string describe() const;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  IndexArray mapping_;
  MaskedDatasetOptions options_;
};

/// Encoder vectors have sequence_length entries, the others decoder_sequence_length.
struct T5Sample {
  std::vector<int64_t> text_enc, enc_mask;
  std::vector<int64_t> text_dec, labels, loss_mask, dec_mask;
  bool truncated = false;
};

class T5Dataset {
 public:
  T5Dataset(std::shared_ptr<const IndexedDataset> data, IndexArray mapping, MaskedDatasetOptions options);
  int64_t size() const { return mapping_.rows(); }
  /// UserError(config) if there are too few sentinels or the decoder sequence is too short.
  T5Sample get(int64_t i) const;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  IndexArray mapping_;
  MaskedDatasetOptions options_;
};

}  // namespace teratron
