#include "teratron/tasks/zeroshot/zeroshot_samples.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/base/json.h"
#include "teratron/base/text_lines.h"
#include "teratron/tasks/text/python_text.h"

namespace teratron {

namespace {

std::vector<int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

int64_t rounded_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace

Windows::Windows(std::vector<int32_t> tokens, int64_t seq_length, int64_t overlap)
    : tokens_(std::move(tokens)), length_(seq_length), overlap_(std::max<int64_t>(1, overlap)) {
  size_ = std::max<int64_t>(rounded_up(std::max<int64_t>(targets() - overlap_, 0), overlap_) + 1, 1);
}

ScoredTokens Windows::get(int64_t i) const {
  const auto all = static_cast<int64_t>(tokens_.size());
  const int64_t begin = i * overlap_, end = std::min(begin + length_ + 1, all);
  ScoredTokens window;
  if (begin < end) window.tokens.assign(tokens_.begin() + begin, tokens_.begin() + end);
  if (i > 0 && overlap_ < length_) window.first = length_ - overlap_ + 1;
  return window;
}

ScoredTokens lambada_sample(const Tokenizer& tokenizer, std::string_view text, bool strict) {
  if (!strict) {
    ScoredTokens sample{.tokens = encoded(tokenizer, text)};
    sample.first = static_cast<int64_t>(sample.tokens.size()) - 1;
    return sample;
  }
  const std::vector<std::string_view> words = words_of(text);
  if (words.empty()) return {};
  const size_t begin = text.rfind(words.back());
  ScoredTokens sample{.tokens = encoded(tokenizer, stripped(text.substr(0, begin)))};
  sample.first = static_cast<int64_t>(sample.tokens.size());
  tokenizer.encode(" " + std::string(words.back()), sample.tokens);
  return sample;
}

std::vector<ScoredTokens> lambada_samples(const Tokenizer& tokenizer, const std::string& path, bool strict) {
  std::vector<ScoredTokens> samples;
  std::vector<Problem> problems;
  std::ifstream file = open_text(path, ExitCode::data);
  int64_t number = 0;
  const auto reject = [&](std::string what, std::string fix) {
    problems.push_back({std::move(what), fmt::format("{}:{}", path, number), std::move(fix)});
  };
  for (std::string line; next_line(file, line, path);) {
    ++number;
    if (stripped(line).empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const nlohmann::json value = parse_json(line, {.where = where, .kind = ExitCode::data});
    const auto text = value.is_object() ? value.find("text") : value.end();
    if (!value.is_object() || text == value.end() || !text->is_string()) {
      reject("the line has no text", "Write {\"text\": ...} on each line, as LAMBADA does");
      continue;
    }
    samples.push_back(lambada_sample(tokenizer, text->get_ref<const std::string&>(), strict));
    if (samples.back().first < 1)
      reject(strict ? "nothing comes before the last word" : "nothing comes before the last token",
             "Write a text of several words");
  }
  if (samples.empty() && problems.empty())
    problems.push_back({"the file has no samples", path, "Write {\"text\": ...} on each line"});
  if (!problems.empty()) throw UserError(ExitCode::data, std::move(problems));
  return samples;
}

}  // namespace teratron
