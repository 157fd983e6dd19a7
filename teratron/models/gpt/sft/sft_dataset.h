// Datasets of packed conversations for supervised finetuning.
//
// A row of sequence_length tokens holds conversations one after the other: attention stays within each,
// positions restart, and the loss is that of the learned tokens. Samples are rows; each epoch of the train
// split has its own order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/data/dataset_builder.h"
#include "teratron/data/epoch_order.h"
#include "teratron/data/indexed/index_array.h"
#include "teratron/data/indexed/index_cache.h"
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
  IndexCache cache = {};                   // of rows; near the data: FILE.cache, of the first file
  std::string tokenizer_fingerprint = {};  // what tells the tokenizer from others in a cache
};

/// The conversations of a split, in rows.
struct SftRows {
  IndexArray tokens;         // i32: of all rows, one after the other; -1 - token where it is not learned
  IndexArray conversations;  // i64: where each begins in `tokens`, then the end
  IndexArray rows;           // i64: the first conversation of each row, then the end
  std::string report;        // one sentence on rows, tokens and what was cut or left out

  int64_t size() const { return rows.rows() - 1; }
  /// UserError(data) if the arrays are damaged.
  std::vector<TokenizedConversation> row(int64_t i) const;
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

  int64_t size() const override { return order_.size(); }
  /// Fills tokens, labels, loss_mask, position_ids and segment_start.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return rows_->report; }
  std::string report() const override { return rows_->report; }
  std::shared_ptr<const Dataset> resized(std::optional<int64_t> samples) const override;

 private:
  std::shared_ptr<const SftRows> rows_;
  Options options_;
  EpochOrder order_;  // row of each sample
};

/// The datasets of one split, or of shares of the lines of all files. UserError(data) lists every problem of
/// every line: those of parse_conversations(), and conversations longer than a row that `overlong` refuses.
Datasets build_sft_datasets(const SftDataOptions& options);

}  // namespace teratron
