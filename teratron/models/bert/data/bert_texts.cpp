#include "teratron/models/bert/data/bert_texts.h"

#include <algorithm>
#include <iterator>

#include "teratron/base/json.h"
#include "teratron/data/numpy_random.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/models/labelled_data/plain_encoder.h"

namespace teratron {

namespace {

std::string text_of_line(const JsonLine& line) {
  const auto wrong = [&](const char* what) {
    return data_error({.what = what,
                       .where = line.where,
                       .fix = R"(Write {"text": "..."} for masked words, or {"text": "...", "label": 0})"});
  };
  const nlohmann::json value = parse_json(line.text, {.where = line.where, .kind = ExitCode::data});
  if (!value.is_object()) throw wrong("the line is not a JSON object");
  if (!value.contains("text")) throw wrong("the line has no \"text\"");
  if (!value["text"].is_string()) throw wrong("\"text\" is not a text");
  auto text = value["text"].get<std::string>();
  if (text.find_first_not_of(" \t\n\r\f\v") == text.npos) throw wrong("the text is empty");
  return text;
}

}  // namespace

BertTexts::BertTexts(const std::vector<JsonLine>& lines, const Tokenizer& tokenizer,
                     const BertTextOptions& options)
    : masking_(options.masking) {
  const PlainEncoder encoder(tokenizer);
  std::vector<std::vector<int32_t>> texts(lines.size());
  std::vector<std::vector<Problem>> problems(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) {
    try {
      encoder.encode(text_of_line(lines[i]), texts[i]);
    } catch (const UserError& error) {
      problems[i] = error.problems();
    }
  });
  std::vector<Problem> all;
  for (std::vector<Problem>& each : problems) std::ranges::move(each, std::back_inserter(all));
  if (!all.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(all)));
  const auto most = static_cast<size_t>(masking_.sequence_length - bert_special_tokens);
  for (const std::vector<int32_t>& tokens : texts) {
    for (size_t begin = 0; begin < tokens.size(); begin += most) {
      const auto first = tokens.begin() + static_cast<ptrdiff_t>(begin);
      rows_.emplace_back(first, first + static_cast<ptrdiff_t>(std::min(most, tokens.size() - begin)));
    }
  }
  if (rows_.empty()) {
    throw data_error({.what = "the texts have no tokens", .where = lines.at(0).where, .fix = "Give others"});
  }
  order_.emplace(EpochOrder::Options{
      .count = std::ssize(rows_), .samples = options.samples, .shuffle = options.shuffle});
  report_ = fmt::format("{} texts in {} rows of {} tokens, {} of which are masked", texts.size(),
                        rows_.size(), masking_.sequence_length, masking_.masking_probability);
}

void BertTexts::get(int64_t i, const Sample& sample) const {
  NumpyRandom random(sample_seed(masking_.seed, i));
  BertSample row;
  join_pair(row, rows_[static_cast<size_t>(order_->at(i))], {}, masking_);
  mask_pair(row, masking_.sequence_length - bert_special_tokens, masking_, random);
  fill_bert_columns(row, sample);
}

Datasets build_bert_texts(const DataSources& sources, const Tokenizer& tokenizer,
                          const BertTextOptions& options) {
  return datasets_of_json_lines(sources, [&](const std::vector<JsonLine>& lines, size_t split) {
    return std::make_shared<BertTexts>(
        lines, tokenizer,
        BertTextOptions{.masking = options.masking,
                        .samples = sources.samples[split],
                        .shuffle = split == 0 ? options.shuffle : std::nullopt});
  });
}

}  // namespace teratron
