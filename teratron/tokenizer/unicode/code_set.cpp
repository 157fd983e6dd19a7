#include "teratron/tokenizer/unicode/code_set.h"

#include <algorithm>

namespace teratron::unicode {

CodeSet::CodeSet(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodeSet::contains(uint32_t code) const {
  const auto after = std::ranges::upper_bound(ranges_, code, {}, &Range::first);
  return after != ranges_.begin() && code <= std::prev(after)->last;
}

CodeSet CodeSet::complement() const {
  CodeSet rest;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.ranges_.push_back({next, kLastCodePoint});
  return rest;
}

CodeSet CodeSet::operator|(const CodeSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return {std::move(both)};
}

CodeSet CodeSet::operator&(const CodeSet& other) const {
  return (complement() | other.complement()).complement();
}

}  // namespace teratron::unicode
