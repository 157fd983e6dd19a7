// Samples of a GPT model: Megatron-LM's GPTDataset, and a mock of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "teratron/data/dataset.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"

namespace teratron {

struct SpecialTokens;

/// How the masks of a sample are made.
struct GPTMaskOptions {
  int64_t eod_id = -1;                // end of document; -1: none
  int64_t pad_id = -1;                // -1: none; see dataset_pad_id()
  bool reset_position_ids = false;    // positions count from 0 after each EOD
  bool reset_attention_mask = false;  // tokens do not see what lies before the last EOD
  bool eod_mask_loss = false;         // no loss where the input token is EOD
  /// Positions and attention are cut where the parts of different sequences meet, not at EOD tokens.
  bool inter_document_masking = false;
  /// Token ids must be below; 0: not checked.
  int64_t vocab_size = 0;
};

/// The id that marks padding in a dataset: the tokenizer's pad, but -1 where it has none or where it is also
/// its eos or eod (which would hide real tokens from the loss) unless `allow_ambiguous`.
int64_t dataset_pad_id(const SpecialTokens& special, bool allow_ambiguous);

/// Samples of one range of an indexed dataset.
///
/// Sample i: the sequence_length + 1 tokens of entry shuffle_index[i]; inputs are the first sequence_length
/// of them and labels the last. A short one is padded; labels that are padding have loss mask 0; padding
/// becomes token 0 in the end. Without the extra token the last label is padding.
class GPTDataset : public Dataset {
 public:
  GPTDataset(std::shared_ptr<const IndexedDataset> data, GPTIndex index, GPTIndexOptions options,
             GPTMaskOptions masks);

  int64_t size() const override { return index_.samples(); }
  int64_t sequence_length() const override { return options_.sequence_length; }
  void get(int64_t i, Sample& sample) const override;
  std::string describe() const override;

  const GPTIndex& index() const { return index_; }

 private:
  void read_tokens(int64_t i, std::vector<int64_t>& tokens, std::vector<int32_t>& part_starts) const;
  int64_t sequence_at(int64_t position) const;
  void check_vocabulary(int64_t sequence, int64_t start, std::span<const int64_t> tokens) const;

  std::shared_ptr<const IndexedDataset> data_;
  GPTIndex index_;
  GPTIndexOptions options_;
  GPTMaskOptions masks_;
};

/// Sequences that need no files, for --mock-data: arithmetic progressions modulo the vocabulary, whose step
/// and start are drawn from (seed, i). A model learns them quickly, so a falling loss shows that training
/// works.
class MockGPTDataset : public Dataset {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t sequence_length = 0;
    int64_t vocab_size = 0;  // > 1
    uint64_t seed = 1234;
  };
  explicit MockGPTDataset(const Options& options);

  int64_t size() const override { return options_.samples; }
  int64_t sequence_length() const override { return options_.sequence_length; }
  void get(int64_t i, Sample& sample) const override;
  std::string describe() const override;

 private:
  Options options_;
};

}  // namespace teratron
