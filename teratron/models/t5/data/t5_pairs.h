// Questions and answers for a T5, from the JSON lines of models/gpt/sft/conversations.h: the encoder reads
// all before an answer, the decoder learns the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/data/dataset_builder.h"
#include "teratron/data/epoch_order.h"
#include "teratron/models/labelled_data/json_lines.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// What becomes of a pair of which one side is longer than its row.
enum class OverlongPairs : uint8_t { error, truncate, drop };

struct T5PairOptions {
  int64_t encoder_length = 0;
  int64_t decoder_length = 0;
  OverlongPairs overlong = OverlongPairs::error;
  std::optional<int64_t> samples = {};   // nullopt: one epoch
  std::optional<uint64_t> shuffle = {};  // the seed of the order of epochs; nullopt: in order
  const Tokenizer& tokenizer;            // with an end of sequence and what a decoder starts with
};

/// One pair per answer, in the columns of t5_schema(). The encoder reads the contents of the messages before
/// it, joined by newlines, and the end-of-sequence token, which stays where the text is cut. The decoder
/// learns the answer and that token, which a cut answer lacks.
class T5Pairs : public Dataset {
 public:
  /// UserError(data) has each kind of problem once, with a count; UserError(config) if the tokenizer lacks a
  /// token.
  T5Pairs(const std::vector<JsonLine>& lines, const T5PairOptions& options);

  int64_t size() const override { return order_->size(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return report_; }
  std::string report() const override { return report_; }

 private:
  struct Pair {
    std::vector<int32_t> source, answer;
    bool is_cut = false;
  };
  struct Line {
    std::vector<Pair> pairs;
    int64_t dropped = 0;
    std::vector<Problem> problems;
  };
  static Line read(const JsonLine& line, const T5PairOptions& options);
  static void add(Pair pair, const std::string& where, const T5PairOptions& options, Line& line);

  std::vector<Pair> pairs_;
  std::optional<EpochOrder> order_;  // pair of each sample
  int32_t start_, pad_;
  std::string report_;
};

/// The datasets of --data-path, or of the files of each split. `options`: of the train split.
Datasets build_t5_pairs(const DataSources& sources, const T5PairOptions& options);

}  // namespace teratron
