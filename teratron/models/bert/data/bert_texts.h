// Texts for a BERT that learns masked words alone, as JSON lines {"text": "..."}.
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
#include "teratron/models/masked_data/masked_dataset.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct BertTextOptions {
  MaskedDatasetOptions masking = {};     // its special tokens must exist
  std::optional<int64_t> samples = {};   // nullopt: one epoch
  std::optional<uint64_t> shuffle = {};  // the seed of the order of epochs; nullopt: in order
};

/// Rows of one text each, in the columns of bert_schema() without sentence pairs; a longer text takes several
/// rows. Each epoch masks other words.
class BertTexts : public Dataset {
 public:
  /// UserError(data) has each kind of problem once, with a count.
  BertTexts(const std::vector<JsonLine>& lines, const Tokenizer& tokenizer, const BertTextOptions& options);

  int64_t size() const override { return order_->size(); }
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override { return report_; }
  std::string report() const override { return report_; }

 private:
  MaskedDatasetOptions masking_;
  std::vector<std::vector<int64_t>> rows_;
  std::optional<EpochOrder> order_;  // row of each sample
  std::string report_;
};

/// The datasets of --data-path, or of the files of each split. `options`: of the train split.
Datasets build_bert_texts(const DataSources& sources, const Tokenizer& tokenizer,
                          const BertTextOptions& options);

}  // namespace teratron
