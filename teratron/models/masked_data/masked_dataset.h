// Samples of BERT and T5: Megatron-LM's masked datasets, token for token.
//
// Sample i draws from RandomState((seed + i) mod 2^32) only, in a fixed order, so that it does not depend on which
// samples were read before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/masked_data/masked_index.h"

namespace teratron {

class NumpyRandom;

struct MaskedDatasetOptions {
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  double masking_probability = 0.15;
  int64_t max_ngram = 3;          // T5: 10
  bool geometric_ngrams = false;  // n from a geometric distribution with p = 0.2 (T5) instead of 1 / n
  bool longer_ngrams = false;     // prefer long ones: n with probabilities in reverse
  /// Whether token id is a piece that continues a word ("##ing"); empty: every piece is a word of its own.
  std::vector<bool> continues_word;
  int64_t vocab_size = 0;  // random replacements are drawn below it
  int64_t cls_id = -1, sep_id = -1, mask_id = -1, pad_id = -1;

  bool classification_head = true;  // BERT: next-sentence task, needs two sentences

  int64_t decoder_sequence_length = 0;  // T5
  int64_t bos_id = -1, eos_id = -1;     // T5
  std::vector<int64_t> sentinel_ids;    // T5: one per span, in order
};

/// Which pieces of a WordPiece vocabulary (one per line) start with "##", by id.
std::vector<bool> read_continuation_pieces(const std::string& vocab_file);

/// Positions that are masked together, and their tokens.
struct MaskedSpan {
  std::vector<int64_t> positions;
  std::vector<int64_t> labels;
};

/// Chooses whole-word n-grams until min(probability x target_length, max(1, round(probability x tokens))) tokens
/// are masked. BERT (mask_id >= 0 and not T5) replaces 80 % by mask_id, 10 % by a random id and keeps 10 %.
/// Returns the spans in order of position; `tokens` is changed in place when `replace`.
std::vector<MaskedSpan> mask_tokens(std::vector<int64_t>& tokens, int64_t target_length,
                                    const MaskedDatasetOptions& options, NumpyRandom& random);

/// All vectors have sequence_length entries.
struct BertSample {
  std::vector<int64_t> text, types, labels;  // labels: -1 where nothing is masked
  std::vector<int64_t> padding_mask, loss_mask;
  bool is_random = false;  // the two segments were swapped
  bool truncated = false;
};

class BertDataset {
 public:
  BertDataset(std::shared_ptr<const IndexedDataset> data, std::vector<SampleMapRow> rows,
              MaskedDatasetOptions options);
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  BertSample get(int64_t i) const;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  std::vector<SampleMapRow> rows_;
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
  T5Dataset(std::shared_ptr<const IndexedDataset> data, std::vector<SampleMapRow> rows,
            MaskedDatasetOptions options);
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  /// UserError(config) when there are too few sentinels or the decoder's sequence is too short.
  T5Sample get(int64_t i) const;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  std::vector<SampleMapRow> rows_;
  MaskedDatasetOptions options_;
};

}  // namespace teratron
