#include "teratron/tokenizer/null_tokenizer.h"

#include <charconv>

#include "teratron/base/error.h"

namespace teratron {

NullTokenizer::NullTokenizer(int64_t vocab_size, bool eod_is_extra)
    : vocab_size_(vocab_size + (eod_is_extra ? 1 : 0)) {
  special_.eod = static_cast<int32_t>(vocab_size_ - 1);
}

void NullTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  for (const TokenSpan& span : encode_with_offsets(text)) ids.push_back(span.id);
}

std::vector<TokenSpan> NullTokenizer::encode_with_offsets(std::string_view text) const {
  std::vector<TokenSpan> spans;
  constexpr std::string_view kWhitespace = " \t\r\n\v\f";
  for (size_t begin = text.find_first_not_of(kWhitespace); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kWhitespace, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    int64_t id = -1;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size() || id < 0 || id >= vocab_size_) {
      throw data_error(
          {.what = fmt::format("'{}' is not an id from 0 to {}", printable(word, 40), vocab_size_ - 1),
           .where = "text of NullTokenizer",
           .fix = "separate ids by whitespace, or use a larger --vocab-size"});
    }
    spans.push_back({static_cast<int32_t>(id), static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    begin = text.find_first_not_of(kWhitespace, end);
  }
  return spans;
}

std::string NullTokenizer::decode(std::span<const int32_t> ids) const {
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace teratron
