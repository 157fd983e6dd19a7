#include "teratron/models/labelled_data/labelled_texts.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/base/json.h"
#include "teratron/models/labelled_data/plain_encoder.h"

namespace teratron {

namespace {

UserError bad_label_line(std::string what, const std::string& where) {
  return data_error({.what = std::move(what),
                     .where = where,
                     .fix = R"(Write {"text": "...", "label": 0}, and "text_b" for a second text)"});
}

double label_of(const nlohmann::json& line, int64_t classes, const std::string& where) {
  if (!line.contains("label")) throw bad_label_line("the line has no \"label\"", where);
  const nlohmann::json& label = line["label"];
  if (!label.is_number())
    throw bad_label_line(
        fmt::format("the label '{}' is not a number",
                    printable(label.is_string() ? label.get<std::string>() : label.dump(), 60)),
        where);
  const auto number = label.get<double>();
  const bool is_class = number >= 0 && number < static_cast<double>(classes) && number == std::floor(number);
  if (classes > 0 && !is_class) {
    throw data_error({.what = fmt::format("the label {} is not a class from 0 to {}",
                                          printable(label.dump(), 60), classes - 1),
                      .where = where,
                      .fix = "Correct it, or set --num-classes"});
  }
  return number;
}

}  // namespace

void LabelledTexts::write_bert(const nlohmann::json& line, const LabelledTextOptions& options, Text& text) {
  const SpecialTokens& special = options.tokenizer.special();
  const PlainEncoder encoder(options.tokenizer);
  text.tokens = {*special.cls};
  encoder.encode(line.at("text").get<std::string>(), text.tokens);
  text.tokens.push_back(*special.sep);
  text.types_begin = std::ssize(text.tokens);
  if (!line.contains("text_b")) return;
  encoder.encode(line.at("text_b").get<std::string>(), text.tokens);
  text.tokens.push_back(*special.sep);
}

void LabelledTexts::write_gpt(const nlohmann::json& line, const LabelledTextOptions& options, Text& text) {
  auto words = line.at("text").get<std::string>();
  if (line.contains("text_b")) words += "\n" + line.at("text_b").get<std::string>();
  options.tokenizer.encode(words, text.tokens);
  if (const auto eod = options.tokenizer.special().eod) text.tokens.push_back(*eod);
}

LabelledTexts::Text LabelledTexts::read(const std::string& line, const std::string& where,
                                        const LabelledTextOptions& options) {
  const nlohmann::json value = parse_json(line, {.where = where, .kind = ExitCode::data});
  if (!value.is_object()) throw bad_label_line("the line is not a JSON object", where);
  if (!value.contains("text")) throw bad_label_line("the line has no \"text\"", where);
  for (const char* const name : {"text", "text_b"}) {
    if (value.contains(name) && !value.at(name).is_string())
      throw bad_label_line(fmt::format("\"{}\" is not a text", name), where);
  }
  Text text{.label = label_of(value, options.classes, where)};
  (options.form == LabelledForm::bert ? write_bert : write_gpt)(value, options, text);
  if (text.tokens.empty()) throw bad_label_line("the text has no tokens", where);
  const auto length = static_cast<size_t>(options.sequence_length);
  text.is_cut = text.tokens.size() > length;
  if (text.is_cut) {
    const int32_t end = text.tokens.back();
    text.tokens.resize(length);
    text.tokens.back() = end;
  }
  text.types_begin = std::min(text.types_begin, std::ssize(text.tokens));
  return text;
}

LabelledTexts::LabelledTexts(const std::vector<JsonLine>& lines, const LabelledTextOptions& options)
    : form_(options.form),
      has_classes_(options.classes > 0),
      pad_(options.tokenizer.special().pad.value_or(0)) {
  const SpecialTokens& special = options.tokenizer.special();
  if (form_ == LabelledForm::bert && (!special.cls || !special.sep)) {
    throw config_error({.what = "the tokenizer has no [CLS] or [SEP]",
                        .where = "--tokenizer-type",
                        .fix = "Use BertWordPieceLowerCase or BertWordPieceCase"});
  }
  texts_.resize(lines.size());
  std::vector<std::vector<Problem>> problems(lines.size());
  for_each_in_parallel(lines.size(), [&](size_t i) {
    try {
      texts_[i] = read(lines[i].text, lines[i].where, options);
    } catch (const UserError& error) {
      problems[i] = error.problems();
    }
  });
  std::vector<Problem> all;
  for (const std::vector<Problem>& each : problems) all.insert(all.end(), each.begin(), each.end());
  if (!all.empty()) throw UserError(ExitCode::data, problems_by_kind(std::move(all)));
  order_.emplace(EpochOrder::Options{
      .count = std::ssize(texts_), .samples = options.samples, .shuffle = options.shuffle});
  const auto cut = std::ranges::count_if(texts_, &Text::is_cut);
  report_ = fmt::format("{} texts", texts_.size());
  if (cut > 0)
    report_ += fmt::format("; {} longer than {} tokens were truncated", cut, options.sequence_length);
}

void LabelledTexts::get(int64_t i, const Sample& sample) const {
  const Text& text = texts_[static_cast<size_t>(order_->at(i))];
  const auto used = std::ssize(text.tokens);
  const std::span<int64_t> tokens = sample.i64("tokens");
  std::ranges::copy(text.tokens, tokens.begin());
  std::fill(tokens.begin() + used, tokens.end(), pad_);
  if (form_ == LabelledForm::bert) {
    const std::span<int64_t> types = sample.i64("types");
    std::fill(types.begin() + text.types_begin, types.begin() + used, 1);
    const std::span<int32_t> start = sample.i32("segment_start");
    std::fill(start.begin() + used, start.end(), static_cast<int32_t>(used));
  } else {
    sample.i64("last_token")[0] = used - 1;
  }
  if (has_classes_) {
    sample.i64("labels")[0] = static_cast<int64_t>(text.label);
  } else {
    sample.f32("labels")[0] = static_cast<float>(text.label);
  }
}

}  // namespace teratron
