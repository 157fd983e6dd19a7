#define PCRE2_CODE_UNIT_WIDTH 8
#include "teratron/tokenizer/text/regex_split.h"

#include <pcre2.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr const char* kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Expands \s and \S: PCRE2's \s includes U+180E, the reference's does not.
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
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  std::string where;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  const std::string expanded = expand_spaces(pattern);
  int error = 0;
  size_t offset = 0;
  code_->where = where;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    throw data_error({.what = fmt::format("invalid regex '{}': {}", printable(pattern), message),
                      .where = where,
                      .fix = "check the pre-tokenizer's pattern"});
  }
  // May fail; matching is then slower.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
  code_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code_->context, kMatchLimit);
  pcre2_set_heap_limit(code_->context, kHeapLimitKiB);
}

Regex Regex::literal(const std::string& text, const std::string& where) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && !std::isalnum(static_cast<uint8_t>(c))) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, where);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Regex::Piece> Regex::find_all(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), &pcre2_match_data_free);
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, data.get(), code_->context);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      throw data_error(
          {.what = fmt::format("the pre-tokenizer's regex failed on a text of {} bytes (PCRE2 error {})",
                               text.size(), count),
           .where = code_->where,
           .fix = "use a pattern with less backtracking, or shorter documents"});
    }
    const size_t* const bounds = pcre2_get_ovector_pointer(data.get());
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
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
  return out;
}

}  // namespace teratron
