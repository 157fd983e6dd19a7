#include "teratron/tokenizer/unicode/graphemes.h"

#include <cstdint>
#include <iterator>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::unicode {

namespace {

#include "teratron/tokenizer/unicode/grapheme_tables.inc"

// Grapheme_Cluster_Break; CR and LF are controls.
enum class Break : uint8_t {
  other,
  control,
  extend,
  joiner,  // ZWJ
  spacing_mark,
  prepend,
  regional,
  l,
  v,
  t,
  lv,
  lvt
};

// A character: its break and the flags of generate_grapheme_tables.py.
struct Kind {
  uint32_t code, bits;

  Break kind() const { return static_cast<Break>(bits & 15U); }
  template <typename... Breaks>
  bool is(Breaks... breaks) const {
    return ((kind() == breaks) || ...);
  }
  bool is_pictograph() const { return (bits & 16U) != 0; }
  bool is_consonant() const { return (bits & 32U) != 0; }
  bool is_linker() const { return (bits & 64U) != 0; }
  bool extends_conjunct() const { return (bits & 128U) != 0; }
};

Kind kind_of(uint32_t code) {
  constexpr size_t rows = std::size(kGraphemeRanges) / 2;
  size_t first = 0, last = rows;  // the row with the last begin that is not behind the code
  while (last - first > 1) {
    const size_t middle = (first + last) / 2;
    (kGraphemeRanges[2 * middle] <= code ? first : last) = middle;
  }
  return {code, kGraphemeRanges[2 * first + 1]};
}

// What the rules that look back know of the cluster so far.
class Cluster {
 public:
  explicit Cluster(Kind first) : last_(first) { look_back(first); }

  /// Adds the next character unless the cluster ends before it.
  bool add(Kind next) {
    if (!joins(next)) return false;
    look_back(next);
    last_ = next;
    return true;
  }

 private:
  enum class Conjunct : uint8_t { none, consonant, linked };
  enum class Pictograph : uint8_t { none, begun, joined };

  // GB3 to GB999.
  bool joins(Kind next) const {
    using enum Break;
    if (last_.code == '\r' && next.code == '\n') return true;
    if (last_.is(control) || next.is(control)) return false;
    if (last_.is(l) && next.is(l, v, lv, lvt)) return true;
    if (last_.is(lv, v) && next.is(v, t)) return true;
    if (last_.is(lvt, t) && next.is(t)) return true;
    if (next.is(extend, joiner, spacing_mark) || last_.is(prepend)) return true;
    if (conjunct_ == Conjunct::linked && next.is_consonant()) return true;
    if (pictograph_ == Pictograph::joined && next.is_pictograph()) return true;
    return odd_regionals_ && next.is(regional);
  }

  void look_back(Kind kind) {
    odd_regionals_ = kind.is(Break::regional) && !odd_regionals_;
    if (kind.is_pictograph()) {
      pictograph_ = Pictograph::begun;
    } else if (pictograph_ == Pictograph::begun && kind.is(Break::joiner)) {
      pictograph_ = Pictograph::joined;
    } else if (pictograph_ != Pictograph::begun || !kind.is(Break::extend)) {
      pictograph_ = Pictograph::none;
    }
    if (kind.is_consonant()) {
      conjunct_ = Conjunct::consonant;
    } else if (conjunct_ != Conjunct::none && kind.is_linker()) {
      conjunct_ = Conjunct::linked;
    } else if (!kind.extends_conjunct()) {
      conjunct_ = Conjunct::none;
    }
  }

  Kind last_;
  bool odd_regionals_ = false;
  Conjunct conjunct_ = Conjunct::none;
  Pictograph pictograph_ = Pictograph::none;
};

}  // namespace

size_t cluster_bytes(std::string_view text) {
  const auto is_ascii = [&](size_t i) { return i >= text.size() || static_cast<uint8_t>(text[i]) < 0x80; };
  if (is_ascii(0) && is_ascii(1) && text[0] != '\r') return 1;
  const char* p = text.data();
  const char* const end = p + text.size();
  Cluster cluster(kind_of(next(p)));
  for (const char* after = p; after < end; p = after) {
    if (!cluster.add(kind_of(next(after)))) break;
  }
  return static_cast<size_t>(p - text.data());
}

}  // namespace teratron::unicode
