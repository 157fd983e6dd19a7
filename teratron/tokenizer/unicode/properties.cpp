#include "teratron/tokenizer/unicode/properties.h"

#include <algorithm>
#include <span>
#include <string>

namespace teratron::unicode {
namespace {

struct PropertyRow {
  std::string_view name;
  uint32_t categories;  // if not 0, the set is their union
  uint32_t first_range, ranges;
};
struct CaseRow {
  uint32_t code, least;  // of those that differ in case only
};

#include "teratron/tokenizer/unicode/unicode_properties.inc"

using Range = CodeSet::Range;

CodeSet of_categories(uint32_t mask) {
  std::vector<Range> ranges;
  const std::span<const uint32_t> table(kCategoryRanges);
  for (size_t i = 0; i < table.size(); i += 2) {
    const uint32_t end = i + 2 < table.size() ? table[i + 2] : kLastCodePoint + 1;
    if (mask >> table[i + 1] & 1U) ranges.push_back({table[i], end - 1});
  }
  return {std::move(ranges)};
}

std::optional<CodeSet> find_row(const std::string& name) {
  const auto* const row = std::ranges::lower_bound(kProperties, name, {}, &PropertyRow::name);
  if (row == std::end(kProperties) || row->name != name) return std::nullopt;
  if (row->categories != 0) return of_categories(row->categories);
  std::vector<Range> ranges;
  for (uint32_t i = row->first_range; i < row->first_range + row->ranges; ++i)
    ranges.push_back({kPropertyRanges[2 * i], kPropertyRanges[2 * i + 1]});
  return CodeSet(std::move(ranges));
}

uint32_t least_of(uint32_t code) {
  const auto* const row = std::ranges::lower_bound(kCaseClasses, code, {}, &CaseRow::code);
  return row != std::end(kCaseClasses) && row->code == code ? row->least : code;
}

}  // namespace

std::optional<CodeSet> property(std::string_view name) {
  std::string spelling;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    spelling += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return spelling.find(':') == std::string::npos ? find_row(spelling) : std::nullopt;
}

std::optional<CodeSet> posix_class(std::string_view name) {
  return find_row("posix:" + std::string(name));
}

CodeSet with_other_case(const CodeSet& set) {
  std::vector<uint32_t> classes;
  for (const auto& [code, least] : kCaseClasses) {
    if (set.contains(code)) classes.push_back(least);
  }
  std::ranges::sort(classes);
  std::vector<Range> ranges = set.ranges();
  for (const auto& [code, least] : kCaseClasses) {
    if (std::ranges::binary_search(classes, least)) ranges.push_back({code, code});
  }
  return {std::move(ranges)};
}

bool has_long_case_fold(const CodeSet& set) {
  const std::span<const uint32_t> table(kLongCaseFolds);
  for (size_t i = 0; i < table.size(); i += 2 + table[i + 1]) {
    if (set.contains(table[i])) return true;
  }
  return false;
}

bool begins_long_case_fold(uint32_t first, uint32_t second) {
  const std::span<const uint32_t> table(kLongCaseFolds);
  for (size_t i = 0; i < table.size(); i += 2 + table[i + 1]) {
    if (least_of(table[i + 2]) == least_of(first) && least_of(table[i + 3]) == least_of(second)) return true;
  }
  return false;
}

}  // namespace teratron::unicode
