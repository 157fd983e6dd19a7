// Texts with labels for finetuning a BERT or GPT, as JSON lines:
//
//   {"text": "...", "label": 1}    {"text": "...", "text_b": "...", "label": 0.5}
//
// A label is a class from 0, or a number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "teratron/data/dataset.h"
#include "teratron/data/epoch_order.h"
#include "teratron/models/labelled_data/json_lines.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// How a sample is written, and the columns that it fills.
enum class LabelledForm : uint8_t {
  bert,  // [CLS] text [SEP] text_b [SEP]; those of bert_classifier_schema()
  gpt,   // text, a newline, text_b, the end-of-document token; those of gpt_classifier_schema()
};

struct LabelledTextOptions {
  LabelledForm form = LabelledForm::bert;
  int64_t sequence_length = 0;
  int64_t classes = 0;                   // 0: labels are numbers
  std::optional<int64_t> samples = {};   // nullopt: one epoch
  std::optional<uint64_t> shuffle = {};  // the seed of the order of epochs; nullopt: in order
  const Tokenizer& tokenizer;            // of a BERT, with [CLS] and [SEP]
};

/// One row per text. Types are 0 up to the first [SEP], then 1. Longer rows are cut, and end with the token
/// that ends all.
class LabelledTexts : public Dataset {
 public:
  /// UserError(data) has each kind of problem once, with a count; UserError(config) if the tokenizer has no
  /// [CLS] or [SEP].
  LabelledTexts(const std::vector<JsonLine>& lines, const LabelledTextOptions& options);

  int64_t size() const override { return order_->size(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return report_; }
  std::string report() const override { return report_; }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    int64_t types_begin = 0;  // of type 1
    double label = 0.0;
    bool is_cut = false;
  };
  static void write_bert(const nlohmann::json& line, const LabelledTextOptions& options, Text& text);
  static void write_gpt(const nlohmann::json& line, const LabelledTextOptions& options, Text& text);
  static Text read(const std::string& line, const std::string& where, const LabelledTextOptions& options);

  std::vector<Text> texts_;
  std::optional<EpochOrder> order_;  // text of each sample
  LabelledForm form_;
  bool has_classes_;
  int64_t pad_;
  std::string report_;
};

}  // namespace teratron
