// Text that a tokenizer rewrites step by step, and where in the original each of its bytes comes from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

/// Code points [begin, end) of the original text.
struct Characters {
  int64_t begin = 0, end = 0;
  bool operator==(const Characters&) const = default;
};

/// A part of a text. `source` has an entry per byte; nullptr where places are not asked for, which is faster.
struct AlignedView {
  std::string_view text;
  const Characters* source = nullptr;

  /// A part of this part.
  AlignedView part(std::string_view piece) const {
    return {piece, source == nullptr ? nullptr : source + (piece.data() - text.data())};
  }
  /// What all bytes come from, of a tracked text; nothing (0, 0) for no bytes.
  Characters characters() const {
    return text.empty() ? Characters{} : Characters{source[0].begin, source[text.size() - 1].end};
  }
};

class AlignedText {
 public:
  /// An original whose places are to be known. Ill-formed UTF-8 is replaced first.
  static AlignedText track(std::string_view original);
  /// For text derived from `from`, tracked if that is.
  explicit AlignedText(AlignedView from) : tracked_(from.source != nullptr) {}

  /// Appends bytes that come from the character at byte `at` of `from`.
  void append(std::string_view bytes, AlignedView from, size_t at) {
    text_ += bytes;
    if (tracked_) source_.insert(source_.end(), bytes.size(), from.source[at]);
  }
  /// Appends all of a text.
  void append(AlignedView text) {
    text_ += text.text;
    if (tracked_) source_.insert(source_.end(), text.source, text.source + text.text.size());
  }
  void reserve(size_t bytes) { text_.reserve(bytes); }
  AlignedView view() const { return {text_, tracked_ ? source_.data() : nullptr}; }

 private:
  friend AlignedText rewrite(AlignedView text, const unicode::Rewriting& rewriting);

  std::string text_;
  std::vector<Characters> source_;
  bool tracked_;
};

/// The text rewritten (NFC, lower case, ...). Places follow as in Hugging Face tokenizers: a composed character comes
/// from the first of its parts, parts of a decomposed one all from it, and marks put into another order keep the order
/// of places.
AlignedText rewrite(AlignedView text, const unicode::Rewriting& rewriting);

/// Calls emit(id, text) for the tokens of an encoded word. `model` says how many bytes a token covers.
template <class Model, class Emit>
void emit_pieces(const Model& model, const std::vector<int32_t>& ids, AlignedView word, const Emit& emit) {
  std::string_view rest = word.text;
  for (const int32_t id : ids) {
    const std::string_view piece = rest.substr(0, model.covered_bytes(id, rest));
    emit(id, word.part(piece));
    rest.remove_prefix(piece.size());
  }
}

}  // namespace teratron
