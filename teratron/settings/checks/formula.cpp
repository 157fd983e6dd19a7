#include "teratron/settings/checks/formula.h"

#include <cctype>
#include <vector>

#include "teratron/base/strings.h"

namespace teratron {

namespace {

std::optional<int64_t> setting(const Field& field, const Arguments& args) {
  const Value value = get_value(field, &args);
  const auto* const number = std::get_if<int64_t>(&value);
  return number ? std::optional(*number) : std::nullopt;
}

bool is_number(const std::string& word) {
  return std::isdigit(static_cast<unsigned char>(word[0])) != 0;
}

}  // namespace

Formula evaluate(std::string_view text, const Arguments& args) {
  Formula result{.value = 1};
  bool divides = false;
  for (const std::string& word : split(text)) {
    if (word == "*" || word == "/") {
      divides = word == "/";
      continue;
    }
    const Field* const field = is_number(word) ? nullptr : &arguments_schema().field(word);
    const std::optional<int64_t> operand = field ? setting(*field, args) : std::stoll(word);
    if (!field) result.factor *= *operand;
    if (field && !divides) result.blamed = field->name;
    result.value = divides ? quotient(result.value, operand) : product(result.value, operand);
  }
  return result;
}

std::vector<std::string> settings_in(std::string_view text) {
  std::vector<std::string> words = split(text);
  std::erase_if(words, [](const std::string& word) { return word == "*" || word == "/" || is_number(word); });
  return words;
}

std::optional<int64_t> quotient(std::optional<int64_t> whole, std::optional<int64_t> divisor) {
  if (!whole || !divisor || *divisor < 1 || *whole % *divisor != 0) return std::nullopt;
  return *whole / *divisor;
}

std::string divisors_text(int64_t value) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t d = 1; d <= value / d && d <= 1'000'000; ++d) {
    if (value % d != 0) continue;
    small.push_back(d);
    if (d != value / d) large.push_back(value / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  std::string out;
  for (size_t i = 0; i < small.size() && i < 12; ++i) out += fmt::format("{}{}", i ? ", " : "", small[i]);
  return small.size() > 12 ? out + ", ..." : out;
}

std::string multiples_text(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  const std::optional<int64_t> above = product(value / step + 1, step);
  if (!above) return fmt::format("{}", below);
  return below == 0 ? fmt::format("{}", *above) : fmt::format("{} or {}", below, *above);
}

std::optional<int64_t> product(std::optional<int64_t> a, std::optional<int64_t> b) {
  int64_t out = 0;
  if (!a || !b || __builtin_mul_overflow(*a, *b, &out)) return std::nullopt;
  return out;
}

}  // namespace teratron
