// Sets of code points.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron::unicode {

inline constexpr uint32_t kLastCodePoint = 0x10ffff;

class CodeSet {
 public:
  struct Range {
    uint32_t first, last;
    bool operator==(const Range&) const = default;
  };

  CodeSet() = default;
  CodeSet(std::vector<Range> ranges);
  static CodeSet of(uint32_t code) { return CodeSet({{code, code}}); }
  static CodeSet all() { return CodeSet({{0, kLastCodePoint}}); }

  /// Ascending, with gaps between them.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool contains(uint32_t code) const;
  CodeSet complement() const;
  CodeSet operator|(const CodeSet& other) const;
  CodeSet operator&(const CodeSet& other) const;
  bool operator==(const CodeSet&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace teratron::unicode
