// Samples for GPT: Megatron-LM's GPTDataset.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "teratron/data/dataset.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/models/gpt/data/gpt_index.h"

namespace teratron {

struct SpecialTokens;

/// Masks of a sample.
struct GPTMaskOptions {
  int64_t eod_id = -1;                // end of document; -1: none
  int64_t pad_id = -1;                // -1: none; see dataset_pad_id()
  bool reset_position_ids = false;    // positions restart at 0 after each EOD; needs column position_ids
  bool reset_attention_mask = false;  // tokens do not attend beyond the last EOD; needs segment_start
  bool eod_mask_loss = false;         // no loss where the input token is EOD
  /// Resets positions and attention where sequences meet, instead of at EOD tokens.
  bool inter_document_masking = false;
  /// Checked upper bound of token ids; 0: not checked.
  int64_t vocab_size = 0;
};

/// Columns tokens, labels, loss_mask of `sequence_length`; position_ids, counted unless positions are reset;
/// segment_start if attention is reset.
BatchSchema gpt_schema(int64_t sequence_length, const GPTMaskOptions& masks);

/// The padding id of a dataset: the tokenizer's pad. -1 if it has none, or if it equals eos or eod (which
/// would mask real tokens out of the loss) unless `allow_ambiguous`.
int64_t dataset_pad_id(const SpecialTokens& special, bool allow_ambiguous);

/// Samples of a range of sequences of an indexed dataset.
///
/// Sample i: the sequence_length + 1 tokens of sample shuffle_index[i]; inputs are the first sequence_length
/// of them, labels the last. A short sample is padded; padding labels have loss mask 0; finally padding
/// becomes token 0. Without the extra token the last label is padding.
class GPTDataset : public Dataset {
 public:
  GPTDataset(std::shared_ptr<const IndexedDataset> data, GPTIndex index, GPTIndexOptions options,
             GPTMaskOptions masks);

  int64_t size() const override { return index_.samples(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;

  const GPTIndex& index() const { return index_; }

 private:
  void read_tokens(int64_t i, std::vector<int64_t>& tokens, std::vector<int32_t>& sequence_starts) const;
  int64_t sequence_at(int64_t position) const;

  std::shared_ptr<const IndexedDataset> data_;
  GPTIndex index_;
  GPTIndexOptions options_;
  GPTMaskOptions masks_;
};

}  // namespace teratron
