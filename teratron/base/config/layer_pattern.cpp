#include "teratron/base/config/layer_pattern.h"

#include <algorithm>
#include <charconv>

#include <fmt/ranges.h>

namespace teratron {

namespace {

using List = std::vector<int64_t>;

// sum := term {"+" term}     term := ["n" "*"] primary {"*" "n"}     primary := "[" [n {"," n}] "]" | "(" sum ")"
class ListParser {
 public:
  ListParser(std::string_view text, int64_t longest) : text_(text), longest_(longest) {}

  std::optional<List> parse() {
    std::optional<List> list = sum(0);
    return list && at_end() ? list : std::nullopt;
  }

 private:
  static constexpr int deepest = 32;

  void skip_blanks() { position_ = std::min(text_.find_first_not_of(" \t", position_), text_.size()); }
  bool at_end() {
    skip_blanks();
    return position_ == text_.size();
  }
  bool take(char c) {
    if (at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  std::optional<int64_t> number() {
    skip_blanks();
    int64_t value = 0;
    const char* const begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    position_ += static_cast<size_t>(end - begin);
    return value;
  }
  std::optional<List> repeated(const List& list, std::optional<int64_t> times) const {
    const auto size = static_cast<int64_t>(list.size());
    if (!times || (size > 0 && *times > longest_ / size)) return std::nullopt;
    List result;
    for (int64_t i = 0; i < *times; ++i) result.insert(result.end(), list.begin(), list.end());
    return result;
  }
  std::optional<List> elements() {
    List list;
    if (take(']')) return list;
    do {
      const std::optional<int64_t> value = number();
      if (!value) return std::nullopt;
      list.push_back(*value);
    } while (take(','));
    return take(']') ? std::optional(list) : std::nullopt;
  }
  std::optional<List> primary(int depth) {
    if (take('[')) return elements();
    if (!take('(') || depth == deepest) return std::nullopt;
    const std::optional<List> list = sum(depth + 1);
    return take(')') ? list : std::nullopt;
  }
  std::optional<List> term(int depth) {
    std::optional<int64_t> times = number();
    if (times && !take('*')) return std::nullopt;
    std::optional<List> list = primary(depth);
    if (list && times) list = repeated(*list, times);
    while (list && take('*')) list = repeated(*list, number());
    return list;
  }
  std::optional<List> sum(int depth) {
    std::optional<List> list = term(depth);
    while (list && take('+')) {
      const std::optional<List> next = term(depth);
      if (!next || static_cast<int64_t>(list->size() + next->size()) > longest_) return std::nullopt;
      list->insert(list->end(), next->begin(), next->end());
    }
    return list;
  }

  std::string_view text_;
  int64_t longest_;
  size_t position_ = 0;
};

}  // namespace

namespace {

// The whole text as a number.
std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<std::vector<int64_t>> parse_layer_pattern(std::string_view text, int64_t layers) {
  if (const auto step = number_in(text)) {
    if (*step < 1) return std::nullopt;
    List list(static_cast<size_t>(layers), 0);
    for (int64_t layer = 0; layer < layers; layer += *step) list[static_cast<size_t>(layer)] = 1;
    return list;
  }
  std::optional<List> list = ListParser(text, layers).parse();
  const bool valid = list && static_cast<int64_t>(list->size()) == layers &&
                     std::all_of(list->begin(), list->end(), [](int64_t x) { return x == 0 || x == 1; });
  return valid ? list : std::nullopt;
}

std::optional<std::vector<int64_t>> parse_all_but_every(std::string_view text, int64_t layers) {
  const auto step = number_in(text);
  if (!step) return parse_layer_pattern(text, layers);
  if (*step < 1) return std::nullopt;
  List list(static_cast<size_t>(layers), 1);
  for (int64_t layer = *step - 1; layer < layers; layer += *step) list[static_cast<size_t>(layer)] = 0;
  return list;
}

std::string to_layer_pattern(const std::vector<int64_t>& layers) {
  const bool all = std::find(layers.begin(), layers.end(), 0) == layers.end();
  return all ? "1" : fmt::format("[{}]", fmt::join(layers, ","));
}

}  // namespace teratron
