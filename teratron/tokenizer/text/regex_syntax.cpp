#include "teratron/tokenizer/text/regex_syntax.h"

#include <algorithm>
#include <optional>

#include "teratron/base/error.h"
#include "teratron/tokenizer/text/regex_class.h"
#include "teratron/tokenizer/unicode/properties.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

using unicode::CodeSet;

constexpr int kDeepestGroup = 200;
constexpr size_t kMostSets = 1024, kLongestPattern = size_t{1} << 16;
constexpr int64_t kMostRepeats = 65'535;

// Parts of the translated pattern: text of PCRE2, or a set of characters.
struct Part {
  std::string text;
  int64_t set = -1;
};

struct Options {
  bool ignore_case = false, dot_all = false, extended = false;
};

class Translator {
 public:
  Translator(PatternReader& reader) : reader_(reader) {}

  TranslatedRegex translate() {
    alternatives({}, 0);
    if (!reader_.at_end()) reader_.invalid("a ')' without '('");
    TranslatedRegex result{.pattern = {}, .kinds = CharacterKinds(sets_)};
    if (!result.kinds.is_valid()) reader_.unknown("more than 256 kinds of characters");
    for (const Part& part : parts_)
      result.pattern +=
          part.set < 0 ? part.text : byte_class(result.kinds.of_set(static_cast<size_t>(part.set)));
    return result;
  }

 private:
  enum class Atom : uint8_t { none, literal, set, group, assertion };

  static std::string byte_class(const std::vector<uint8_t>& kinds) {
    if (kinds.empty()) return "(?!)";
    if (kinds.size() == 1) return fmt::format("\\x{:02x}", kinds.front());
    std::string text = "[";
    for (const uint8_t kind : kinds) text += fmt::format("\\x{:02x}", kind);
    return text + "]";
  }

  void add(std::string text) { parts_.push_back({std::move(text)}); }
  void add(const CodeSet& set) {
    const auto known = std::ranges::find(sets_, set);
    parts_.push_back({{}, known - sets_.begin()});
    if (known == sets_.end()) sets_.push_back(set);
    if (sets_.size() > kMostSets) reader_.unknown("more than 1024 different characters and classes");
  }
  bool is_rust() const { return reader_.syntax() == RegexSyntax::rust; }

  // Up to ')' or the end.
  void alternatives(Options options, int depth) {
    if (depth > kDeepestGroup) reader_.unknown("groups nested more than 200 deep");
    while (!reader_.at_end() && reader_.peek() != ')') {
      if (reader_.take_if('|')) {
        add("|");
        previous_literal_.reset();
        continue;
      }
      const size_t begin = parts_.size();
      const Atom kind = atom(options, depth);
      if (kind != Atom::literal) previous_literal_.reset();
      if (kind != Atom::none) quantifiers(kind, begin, options);
    }
    previous_literal_.reset();
  }

  Atom atom(Options& options, int depth) {
    const uint32_t c = reader_.take();
    if (options.extended && skip_extended(c)) return Atom::none;
    switch (c) {
      case '(':
        return group(options, depth);
      case '[':
        add(reader_.bracket(options.ignore_case));
        return Atom::set;
      case '\\':
        return escape(options);
      case '.':
        add(options.dot_all ? CodeSet::all() : CodeSet::of('\n').complement());
        return Atom::set;
      case '^':
        if (is_rust()) return assertion("\\A");
        return around("(?:\\A|(?<=", ")(?!\\z))");
      case '$':
        if (is_rust()) return assertion("\\z");
        return around("(?:\\z|(?=", "))");
      case '*':
      case '+':
      case '?':
        reader_.invalid("a quantifier with nothing before it");
      default:
        return literal(c, options);
    }
  }

  bool skip_extended(uint32_t c) {
    if (c == '#') {
      while (!reader_.at_end() && reader_.take() != '\n') {
      }
      return true;
    }
    return c == ' ' || (c >= '\t' && c <= '\r');
  }

  Atom assertion(const char* text) {
    add(text);
    return Atom::assertion;
  }

  // An assertion about newlines.
  Atom around(const char* before, const char* after) {
    add(before);
    add(CodeSet::of('\n'));
    add(after);
    return Atom::assertion;
  }

  Atom literal(uint32_t c, const Options& options) {
    CodeSet set = CodeSet::of(c);
    if (options.ignore_case) {
      const bool joins = previous_literal_ && unicode::begins_long_case_fold(*previous_literal_, c);
      if (joins || unicode::has_long_case_fold(set)) reader_.unknown(kLongCaseFold);
      set = unicode::with_other_case(set);
    }
    previous_literal_ = c;
    add(set);
    return Atom::literal;
  }

  Atom escape(const Options& options) {
    if (const std::optional<CodeSet> set = reader_.escaped_set(/*in_class=*/false)) {
      add(*set);
      return Atom::set;
    }
    const uint32_t c = reader_.peek();
    const auto word = [&](const char* text) {  // all of it about neighbours of the class
      reader_.take();
      for (const char* p = text; *p != 0; ++p) {
        if (*p == 'W') {
          add(reader_.word(/*in_class=*/false));
        } else {
          add(std::string(1, *p));
        }
      }
      return Atom::assertion;
    };
    if (c == 'b') return word("(?:(?<=W)(?!W)|(?<!W)(?=W))");
    if (c == 'B') return word("(?:(?<=W)(?=W)|(?<!W)(?!W))");
    if (c == 'A' || c == 'z') {
      reader_.take();
      return assertion(c == 'A' ? "\\A" : "\\z");
    }
    if (c == 'Z' && !is_rust()) {
      reader_.take();
      add("(?=");
      add(CodeSet::of('\n'));
      return assertion("?\\z)");
    }
    if (c == 'R' && !is_rust()) {
      reader_.take();
      add("(?>");
      add(CodeSet::of('\r'));
      add(CodeSet::of('\n'));
      add("|");
      add(CodeSet({{'\n', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}}));
      add(")");
      return Atom::group;
    }
    return literal(reader_.escaped_code(/*in_class=*/false), options);
  }

  Atom group(Options& options, int depth) {
    if (!reader_.take_if('?')) return enclosed("(?:", options, depth);
    if (reader_.take_if('#')) {
      while (reader_.take() != ')') {
      }
      return Atom::none;
    }
    for (const auto& [mark, text] : {std::pair{":", "(?:"}, {">", "(?>"}}) {
      if (reader_.take_if(mark)) return enclosed(text, options, depth);
    }
    for (const char* const mark : {"=", "!", "<=", "<!"}) {
      if (!reader_.take_if(mark)) continue;
      enclosed(std::string("(?") + mark, options, depth);
      return Atom::assertion;
    }
    const bool named = is_rust() ? reader_.take_if("P<") || reader_.take_if("<") : reader_.take_if("<");
    if (named || (!is_rust() && reader_.take_if('\''))) {
      while (reader_.peek() == '_' || reader_.word(/*in_class=*/false).contains(reader_.peek()))
        reader_.take();
      const uint32_t end = reader_.take();
      if (end != '>' && end != '\'') reader_.unknown("a group that begins with '(?<'");
      return enclosed("(?:", options, depth);
    }
    Options inner = options;
    if (read_options(inner)) return enclosed("(?:", inner, depth);
    if (is_rust()) {
      options = inner;
      return Atom::none;
    }
    // For Oniguruma, what follows up to the end of the group, with all its alternatives, is a group.
    previous_literal_.reset();
    add("(?:");
    alternatives(inner, depth + 1);
    add(")");
    return Atom::none;
  }

  Atom enclosed(std::string open, const Options& options, int depth) {
    previous_literal_.reset();
    add(std::move(open));
    alternatives(options, depth + 1);
    if (!reader_.take_if(')')) reader_.invalid("a '(' without ')'");
    add(")");
    return Atom::group;
  }

  // "i-m:" or "i)". True if a group follows.
  bool read_options(Options& options) {
    bool on = true;
    while (true) {
      const uint32_t c = reader_.take();
      if (c == ':') return true;
      if (c == ')') return false;
      if (c == '-') {
        on = false;
      } else if (c == 'i') {
        options.ignore_case = on;
      } else if (c == (is_rust() ? 's' : 'm')) {
        options.dot_all = on;
      } else if (c == 'x' && !is_rust()) {
        options.extended = on;
      } else {
        std::string name;
        unicode::append(c, name);
        reader_.unknown(fmt::format("a group that begins with '(?{}'", printable(name)));
      }
    }
  }

  struct Interval {
    int64_t low = 0, high = -1;  // -1: no limit
    bool is_fixed = false;       // {n}
  };

  // Behind '{'; nullopt, with nothing read, if it is an ordinary character.
  std::optional<Interval> interval() {
    const size_t begin = reader_.position();
    const std::optional<int64_t> low = reader_.number(kMostRepeats);
    Interval found{.low = low.value_or(0), .high = low.value_or(-1), .is_fixed = true};
    bool valid = low.has_value();
    if (reader_.take_if(',')) {
      const std::optional<int64_t> high = reader_.number(kMostRepeats);
      found = {.low = found.low, .high = high.value_or(-1)};
      valid = low || (high && !is_rust());
    }
    if (valid && reader_.take_if('}')) {
      if (found.high >= 0 && found.high < found.low)
        reader_.unknown("an interval whose end is before its beginning");
      return found;
    }
    if (is_rust()) reader_.invalid("an interval that is not closed");
    reader_.seek(begin);
    return std::nullopt;
  }

  // Each applies to all before it, from part `begin` on.
  void quantifiers(Atom kind, size_t begin, const Options& options) {
    for (int count = 0; !reader_.at_end(); ++count) {
      if (options.extended && count == 0) skip_blanks();
      std::optional<std::string> text;
      bool is_fixed = false, is_interval = false;
      for (const char c : {'*', '+', '?'}) {
        if (reader_.take_if(static_cast<uint32_t>(c))) {
          text = std::string(1, c);
          break;
        }
      }
      if (!text && reader_.peek_is('{')) {
        const size_t before = reader_.position();
        reader_.take();
        const std::optional<Interval> found = interval();
        if (!found) {
          reader_.seek(before);
          return;
        }
        is_interval = true, is_fixed = found->is_fixed;
        text = found->is_fixed   ? fmt::format("{{{}}}", found->low)
               : found->high < 0 ? fmt::format("{{{},}}", found->low)
                                 : fmt::format("{{{},{}}}", found->low, found->high);
      }
      if (!text) return;
      if (kind == Atom::assertion) reader_.unknown("a quantifier after an assertion");
      // Oniguruma reads {n}? as (?:{n})?, and {n,m}+ as (?:{n,m})+.
      const bool suffix_is_next = !is_rust() && is_interval;
      if (reader_.peek_is('?') && !(suffix_is_next && is_fixed)) {
        reader_.take();
        if (!is_fixed) *text += "?";
      } else if (reader_.peek_is('+') && !suffix_is_next) {
        reader_.take();
        *text += "+";
      }
      previous_literal_.reset();
      if (count > 0) {
        parts_.insert(parts_.begin() + static_cast<int64_t>(begin), {"(?:"});
        add(")");
      }
      add(*text);
    }
  }

  void skip_blanks() {
    while (!reader_.at_end() && (reader_.peek() == ' ' || (reader_.peek() >= '\t' && reader_.peek() <= '\r')))
      reader_.take();
  }

  PatternReader& reader_;
  std::vector<Part> parts_;
  std::vector<CodeSet> sets_;
  std::optional<uint32_t> previous_literal_;  // without a quantifier between
};

}  // namespace

TranslatedRegex translate_regex(std::string_view pattern, RegexSyntax syntax, const std::string& where) {
  PatternReader reader(pattern, syntax, where);
  if (pattern.size() > kLongestPattern) reader.unknown("more than 65536 bytes");
  return Translator(reader).translate();
}

}  // namespace teratron
