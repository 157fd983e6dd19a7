// Splits text by a regex, as Hugging Face's Split pre-tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/text/regex_syntax.h"

namespace teratron {

/// Hugging Face's SplitDelimiterBehavior.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// By its name there; nullopt for others.
std::optional<SplitBehavior> split_behavior(std::string_view name);

/// A compiled pattern, run by PCRE2. Not translated, its classes are PCRE2's, except \s, which is Python's.
class Regex {
 public:
  /// UserError(data) for an invalid pattern, and by name for what translate_regex() does not know; `where` is
  /// its file or flag.
  Regex(const std::string& pattern, const std::string& where, RegexSyntax syntax = RegexSyntax::oniguruma);
  /// A pattern that matches `text` literally.
  static Regex literal(const std::string& text, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// What a literal pattern matches; else empty.
  std::string_view literal_text() const;

  struct Piece {
    std::string_view text;
    bool is_match;
  };
  /// Matches and the gaps between them, in order. UserError(data) if a match exceeds the backtracking limit.
  /// Empty matches, which divide gaps, are pieces of translated patterns only. The text must be valid UTF-8.
  std::vector<Piece> find_all(std::string_view text) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::vector<Piece> find_literal(std::string_view text) const;
  std::vector<Piece> find_kinds(std::string_view text) const;
  std::vector<Piece> find_untranslated(std::string_view text) const;

  std::unique_ptr<Code> code_;
};

/// Removes or merges matches. Empty pieces are dropped.
std::vector<std::string_view> apply_behavior(const std::vector<Regex::Piece>& pieces, SplitBehavior behavior);

}  // namespace teratron
