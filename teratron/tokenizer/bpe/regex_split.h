// Cutting text by a regular expression (PCRE2, Unicode) as Hugging Face's Split pre-tokenizer does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// What becomes of the matches.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// A compiled pattern. Classes are PCRE2's, which knows Unicode 14, but for \s, which is the reference's.
class Regex {
 public:
  /// Throws UserError(data) for a pattern that PCRE2 does not understand.
  Regex(const std::string& pattern, const std::string& where);
  /// A pattern that matches `text` literally.
  static Regex literal(const std::string& text, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  struct Piece {
    std::string_view text;
    bool is_match;
  };
  /// Matches and what lies between them, in order. Throws UserError(data) when a match takes too many steps
  /// (a pattern that backtracks without end).
  std::vector<Piece> find_all(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// The pieces that the behaviour leaves; empty ones are dropped.
std::vector<std::string_view> apply_behavior(const std::vector<Regex::Piece>& pieces, SplitBehavior behavior);

}  // namespace teratron
