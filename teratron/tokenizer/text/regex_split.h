// Splits text by a regex (PCRE2 with Unicode), as Hugging Face's Split pre-tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Hugging Face's SplitDelimiterBehavior.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// By its name there; nullopt for others.
std::optional<SplitBehavior> split_behavior(std::string_view name);

/// A compiled pattern. Classes are PCRE2's (Unicode 14), except \s, which is that of the reference.
class Regex {
 public:
  /// UserError(data) for an invalid pattern; `where` is its file or flag.
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
  /// Matches and the gaps between them, in order. UserError(data) if a match exceeds the backtracking limit.
  std::vector<Piece> find_all(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Removes or merges matches; empty pieces are dropped.
std::vector<std::string_view> apply_behavior(const std::vector<Regex::Piece>& pieces, SplitBehavior behavior);

}  // namespace teratron
