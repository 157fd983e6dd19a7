// Datasets of packed conversations for supervised finetuning.
//
// A row of sequence_length tokens holds conversations one after the other: attention stays within each,
// positions restart, and the loss is that of the learned tokens. Samples are rows; each epoch of the train
// split has its own order.
#pragma once

#include <optional>

#include "teratron/data/dataset_builder.h"
#include "teratron/data/resizable_dataset.h"
#include "teratron/models/gpt/sft/tokens.h"

namespace teratron {

enum class SftPacking : uint8_t {
  best_fit,  // shuffled conversations of all lines: pack_best_fit()
  lines,     // Megatron-LM's: the conversations of one line
};
enum class OverlongConversations : uint8_t { error, truncate, drop };

struct SftDataOptions {
  DataSources sources = {};  // files of JSON lines, without weights
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  SftPacking packing = SftPacking::best_fit;
  OverlongConversations overlong = OverlongConversations::error;
  LearnedTokens learned = LearnedTokens::answers;
  const ChatTemplate& chat;
  const Tokenizer& tokenizer;
};

/// The conversations of a split, in rows.
struct SftRows {
  std::vector<TokenizedConversation> conversations;
  std::vector<std::vector<int64_t>> rows;  // indices of conversations
  std::string report;                      // one sentence on rows, tokens and what was cut or left out
};

class SftDataset : public ResizableDataset {
 public:
  struct Options {
    int64_t sequence_length = 0;
    std::optional<int64_t> samples = {};   // nullopt: one epoch
    std::optional<uint64_t> shuffle = {};  // the seed; nullopt: in order
    int32_t pad = 0;
  };
  SftDataset(std::shared_ptr<const SftRows> rows, const Options& options);

  int64_t size() const override { return static_cast<int64_t>(order_.size()); }
  /// Fills tokens, labels, loss_mask, position_ids and segment_start.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return rows_->report; }
  std::string report() const override { return rows_->report; }
  std::shared_ptr<const Dataset> resized(std::optional<int64_t> samples) const override;

 private:
  std::shared_ptr<const SftRows> rows_;
  Options options_;
  std::vector<int64_t> order_;  // row of each sample
};

/// Of one split, or of shares of the lines of all files. UserError(data) lists every problem of every line:
/// those of parse_conversations(), and conversations longer than a row unless `overlong` allows them.
Datasets build_sft_datasets(const SftDataOptions& options);

}  // namespace teratron
