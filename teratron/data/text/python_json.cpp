#include "teratron/data/text/python_json.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace teratron {

namespace {

class Rewriter {
 public:
  explicit Rewriter(std::string_view line) : text_(line) {}

  std::optional<std::string> run() {
    while (at_ < text_.size()) {
      if (text_[at_] == '"') {
        skip_string();
      } else if (const size_t length = number_length(); length > 0) {
        replace(length, "0");
      } else {
        ++at_;
      }
    }
    return changed_ ? std::optional(text_) : std::nullopt;
  }

 private:
  // Pads with blanks.
  void replace(size_t length, std::string_view with) {
    text_.replace(at_, length, std::string(with) + std::string(length - with.size(), ' '));
    at_ += length;
    changed_ = true;
  }

  size_t digits(size_t from) const {
    size_t end = from;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) ++end;
    return end - from;
  }

  // Length of the NaN, Infinity or JSON number that starts here; 0: none does.
  size_t number_length() const {
    constexpr std::string_view before = " \t\r\n[{,:";
    if (at_ > 0 && before.find(text_[at_ - 1]) == before.npos) return 0;  // invalid JSON must stay invalid
    const std::string_view rest = std::string_view(text_).substr(at_);
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (rest.starts_with(word)) return word.size();
    }
    size_t end = at_ + (text_[at_] == '-' ? 1 : 0);
    const size_t whole = digits(end);
    if (whole == 0 || (whole > 1 && text_[end] == '0')) return 0;
    end += whole;
    if (end < text_.size() && text_[end] == '.' && digits(end + 1) > 0) end += 1 + digits(end + 1);
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (const size_t exponent = digits(end + 1 + sign); exponent > 0) end += 1 + sign + exponent;
    }
    return end - at_;
  }

  // The value of an escape \uXXXX that starts at `from`.
  std::optional<uint32_t> unit(size_t from) const {
    if (from + 6 > text_.size() || text_[from] != '\\' || text_[from + 1] != 'u') return std::nullopt;
    uint32_t value = 0;
    const char* const end = text_.data() + from + 6;
    if (std::from_chars(text_.data() + from + 2, end, value, 16).ptr != end) return std::nullopt;
    return value;
  }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"';) {
      if (text_[at_] != '\\') {
        ++at_;
        continue;
      }
      const auto first = unit(at_);
      if (!first || *first < 0xD800 || *first > 0xDFFF) {
        at_ += 2;
        continue;
      }
      const auto second = unit(at_ + 6);
      const bool pair = *first < 0xDC00 && second && *second >= 0xDC00 && *second <= 0xDFFF;
      if (pair) {
        at_ += 12;
      } else {
        replace(6, "\\uffff");
      }
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string text_;
  size_t at_ = 0;
  bool changed_ = false;
};

}  // namespace

std::optional<std::string> to_strict_json(std::string_view line) {
  return Rewriter(line).run();
}

}  // namespace teratron
