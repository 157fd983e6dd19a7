#define PCRE2_CODE_UNIT_WIDTH 8
#include "teratron/tokenizer/text/regex_split.h"

#include <pcre2.h>

#include "teratron/base/error.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr const char* kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Expands \s and \S of untranslated patterns: PCRE2's \s includes U+180E, the reference's does not.
std::string expand_spaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? kSpaces : fmt::format("[{}]", kSpaces);
      } else if (escaped == 'S' && !in_class) {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

std::optional<SplitBehavior> split_behavior(std::string_view name) {
  constexpr std::pair<std::string_view, SplitBehavior> names[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  for (const auto& [known, behavior] : names) {
    if (known == name) return behavior;
  }
  return std::nullopt;
}

struct Regex::Code {
  using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
  struct Match {
    size_t begin, end;
  };

  std::string literal;  // else code
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  std::optional<CharacterKinds> kinds;  // if the pattern is over these
  std::string where;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  void compile(const std::string& translated, uint32_t options, const std::string& original) {
    int error = 0;
    size_t offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                         &offset, nullptr);
    if (code == nullptr) {
      char message[256] = {};
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
      throw data_error({.what = fmt::format("invalid regex '{}': {}", printable(original), message),
                        .where = where,
                        .fix = "check the pre-tokenizer's pattern"});
    }
    // May fail; matching is then slower.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKiB);
  }

  MatchData match_data() const {
    return {pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free};
  }

  /// The first match from `from` on.
  std::optional<Match> match(std::string_view text, size_t from, const MatchData& data) const {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, data.get(), context);
    };
    int count = run(0);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = run(PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (count < 0) {
      throw data_error(
          {.what = fmt::format("the pre-tokenizer's regex failed on a text of {} bytes (PCRE2 error {})",
                               text.size(), count),
           .where = where,
           .fix = "use a pattern with less backtracking, or shorter documents"});
    }
    const size_t* const bounds = pcre2_get_ovector_pointer(data.get());
    return Match{bounds[0], bounds[1]};
  }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}

Regex::Regex(const std::string& pattern, const std::string& where, RegexSyntax syntax)
    : code_(std::make_unique<Code>()) {
  code_->where = where;
  if (syntax == RegexSyntax::pcre2) {
    code_->compile(expand_spaces(pattern), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, pattern);
    return;
  }
  TranslatedRegex translated = translate_regex(pattern, syntax, where);
  code_->compile(translated.pattern, 0, pattern);
  code_->kinds = std::move(translated.kinds);
}

Regex Regex::literal(const std::string& text, const std::string& where) {
  auto code = std::make_unique<Code>();
  code->literal = text;
  code->where = where;
  return Regex(std::move(code));
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::string_view Regex::literal_text() const {
  return code_->literal;
}

std::vector<Regex::Piece> Regex::find_all(std::string_view text) const {
  if (text.empty()) return {};
  if (!code_->literal.empty()) return find_literal(text);
  return code_->kinds ? find_kinds(text) : find_untranslated(text);
}

std::vector<Regex::Piece> Regex::find_literal(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t begin = text.find(code_->literal); begin != std::string_view::npos;
       begin = text.find(code_->literal, done)) {
    if (done < begin) pieces.push_back({text.substr(done, begin - done), false});
    pieces.push_back({text.substr(begin, code_->literal.size()), true});
    done = begin + code_->literal.size();
  }
  if (done < text.size()) pieces.push_back({text.substr(done), false});
  return pieces;
}

// An empty match counts unless another match ends there, as in the iterator of Hugging Face tokenizers.
std::vector<Regex::Piece> Regex::find_kinds(std::string_view text) const {
  const std::string kinds = code_->kinds->of_text(text);
  const Code::MatchData data = code_->match_data();
  size_t character = 0, byte = 0;
  const auto byte_of = [&](size_t wanted) {  // ascending
    if (kinds.size() == text.size()) return wanted;
    for (; character < wanted; ++character) byte += unicode::sequence_bytes(text[byte]);
    return byte;
  };
  std::vector<Piece> pieces;
  size_t done = 0, from = 0;
  std::optional<size_t> last_end;
  while (from <= kinds.size()) {
    const std::optional<Code::Match> match = code_->match(kinds, from, data);
    if (!match) break;
    if (match->begin == match->end && match->end == last_end) {
      ++from;
      continue;
    }
    last_end = from = match->end;
    const size_t begin = byte_of(match->begin), end = byte_of(match->end);
    if (done < begin) pieces.push_back({text.substr(done, begin - done), false});
    pieces.push_back({text.substr(begin, end - begin), true});
    done = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), false});
  return pieces;
}

std::vector<Regex::Piece> Regex::find_untranslated(std::string_view text) const {
  const Code::MatchData data = code_->match_data();
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const std::optional<Code::Match> match = code_->match(text, from, data);
    if (!match) break;
    const auto [begin, end] = *match;
    if (begin >= end || begin < from) {  // empty (or a look-behind's \K): skip a code point
      ++from;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    if (done < begin) pieces.push_back({text.substr(done, begin - done), false});
    pieces.push_back({text.substr(begin, end - begin), true});
    done = from = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), false});
  return pieces;
}

std::vector<std::string_view> apply_behavior(const std::vector<Regex::Piece>& pieces,
                                             SplitBehavior behavior) {
  std::vector<std::string_view> out;
  const auto joined = [](std::string_view a, std::string_view b) {
    return std::string_view(a.data(), a.size() + b.size());
  };
  bool previous_match = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [text, is_match] = pieces[i];
    bool join_previous = false;
    switch (behavior) {
      case SplitBehavior::removed:
        if (is_match) continue;
        break;
      case SplitBehavior::isolated:
        break;
      case SplitBehavior::contiguous:
        join_previous = i > 0 && is_match == previous_match;
        break;
      case SplitBehavior::merged_with_previous:
        join_previous = i > 0 && is_match && !previous_match;
        break;
      case SplitBehavior::merged_with_next:
        join_previous = i > 0 && !is_match && previous_match;
        break;
    }
    if (join_previous) {
      out.back() = joined(out.back(), text);
    } else {
      out.push_back(text);
    }
    previous_match = is_match;
  }
  std::erase_if(out, [](std::string_view piece) { return piece.empty(); });
  return out;
}

}  // namespace teratron
