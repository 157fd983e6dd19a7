#include "teratron/tasks/text/python_text.h"

#include <algorithm>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

bool is_blank(uint32_t code_point) {
  return (unicode::characters()[code_point] & unicode::python_split) != 0;
}

// Calls `use(piece, blank)` with the maximal runs of blanks and of other characters.
template <typename Use>
void for_runs(std::string_view text, const Use& use) {
  const char *p = text.data(), *const end = p + text.size();
  while (p < end) {
    const char* const begin = p;
    const char* after = p;
    const bool blank = is_blank(unicode::next(after));
    do {
      p = after;
    } while (p < end && is_blank(unicode::next(after)) == blank);
    use(std::string_view(begin, static_cast<size_t>(p - begin)), blank);
  }
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t found; (found = text.find(from, begin)) != std::string_view::npos;
       begin = found + from.size()) {
    out += text.substr(begin, found - begin);
    out += to;
  }
  return out += text.substr(begin);
}

std::string_view right_stripped(std::string_view text) {
  const char *const begin = text.data(), *end = begin + text.size();
  while (end > begin) {
    const char* before = end;
    if (!is_blank(unicode::previous(begin, before))) break;
    end = before;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

std::string_view stripped(std::string_view text) {
  text = right_stripped(text);
  const char *p = text.data(), *const end = p + text.size();
  while (p < end) {
    const char* after = p;
    if (!is_blank(unicode::next(after))) break;
    p = after;
  }
  return {p, static_cast<size_t>(end - p)};
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for_runs(text, [&](std::string_view run, bool blank) {
    if (!blank) words.push_back(run);
  });
  return words;
}

std::string single_blanks(std::string_view text) {
  std::string out;
  for_runs(text, [&](std::string_view run, bool blank) { out += blank ? " " : run; });
  return out;
}

int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0U) != 0x80U; });
}

}  // namespace teratron
