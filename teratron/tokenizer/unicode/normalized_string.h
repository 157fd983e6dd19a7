// Text under normalization, and for each of its bytes the characters of the original text that it comes from;
// as in Hugging Face tokenizers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

/// Code points [begin, end) of the original text.
struct Offsets {
  int64_t begin = 0, end = 0;
  bool operator==(const Offsets&) const = default;
};

/// A slice of a text. `alignments` has an entry per byte; nullptr if offsets are not needed, which is faster.
struct NormalizedView {
  std::string_view text;
  const Offsets* alignments = nullptr;

  NormalizedView slice(std::string_view piece) const {
    return {piece, alignments == nullptr ? nullptr : alignments + (piece.data() - text.data())};
  }
  /// Requires alignments. (0, 0) if empty.
  Offsets offsets() const {
    return text.empty() ? Offsets{} : Offsets{alignments[0].begin, alignments[text.size() - 1].end};
  }
};

class NormalizedString {
 public:
  /// The original text, with invalid UTF-8 replaced.
  static NormalizedString with_alignments(std::string_view original);
  /// Empty; has alignments if `from` has.
  explicit NormalizedString(NormalizedView from) : aligned_(from.alignments != nullptr) {}

  /// Appends bytes aligned to byte `at` of `from`.
  void append(std::string_view bytes, NormalizedView from, size_t at) {
    text_ += bytes;
    if (aligned_) alignments_.insert(alignments_.end(), bytes.size(), from.alignments[at]);
  }
  void append(NormalizedView text) {
    text_ += text.text;
    if (aligned_) alignments_.insert(alignments_.end(), text.alignments, text.alignments + text.text.size());
  }
  void reserve(size_t bytes) { text_.reserve(bytes); }
  NormalizedView view() const { return {text_, aligned_ ? alignments_.data() : nullptr}; }

 private:
  friend NormalizedString normalize(NormalizedView text, const unicode::Normalization& normalization);
  friend NormalizedString apply_changes(NormalizedView text, const std::vector<unicode::Change>& changes);

  std::string text_;
  std::vector<Offsets> alignments_;
  bool aligned_;
};

/// Alignments as in Hugging Face tokenizers: a composed character is aligned to the first of its parts, all
/// parts of a decomposed one to it; reordered marks keep the order of the alignments.
NormalizedString normalize(NormalizedView text, const unicode::Normalization& normalization);
/// Applies the changes that a normalization makes.
NormalizedString apply_changes(NormalizedView text, const std::vector<unicode::Change>& changes);

/// Calls emit(id, text) for the tokens of an encoded word; model.covered_bytes(id, rest) is the length of a
/// token.
template <class Model, class Emit>
void for_each_token(const Model& model, const std::vector<int32_t>& ids, NormalizedView word,
                    const Emit& emit) {
  std::string_view rest = word.text;
  for (const int32_t id : ids) {
    const std::string_view piece = rest.substr(0, model.covered_bytes(id, rest));
    emit(id, word.slice(piece));
    rest.remove_prefix(piece.size());
  }
}

}  // namespace teratron
