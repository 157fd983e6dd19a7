#include "teratron/tokenizer/sentencepiece/sentencepiece_normalizer.h"

#include <algorithm>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

SentencePieceNormalizer::SentencePieceNormalizer(const NormalizerSpec& spec, const ByteTrie& protected_pieces,
                                                 const std::string& where)
    : map_(spec.charsmap, where),
      add_dummy_prefix_(spec.add_dummy_prefix),
      remove_extra_whitespaces_(spec.remove_extra_whitespaces),
      whitespace_as_suffix_(spec.whitespace_as_suffix),
      space_(spec.escape_whitespaces ? kSpaceSymbol : " "),
      protected_pieces_(protected_pieces) {}

CharsMap::Match SentencePieceNormalizer::prefix(std::string_view text) const {
  if (const size_t bytes = protected_pieces_.longest_prefix(text).bytes)
    return {bytes, text.substr(0, bytes)};
  if (const CharsMap::Match rule = map_.longest_prefix(text); rule.bytes > 0) return rule;
  const std::string_view character = text.substr(0, unicode::sequence_bytes(text[0]));
  return {character.size(), character};
}

std::string SentencePieceNormalizer::normalize(std::string_view text,
                                               std::vector<size_t>* norm_to_orig) const {
  const char* const start = text.data();
  while (remove_extra_whitespaces_ && !text.empty()) {
    const CharsMap::Match first = prefix(text);
    if (first.replacement != " ") break;
    text.remove_prefix(first.bytes);
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2 + 2 * space_.size());
  const auto consumed = [&] { return static_cast<size_t>(text.data() - start); };
  const auto record = [&] {
    if (norm_to_orig != nullptr) norm_to_orig->resize(out.size(), consumed());
  };
  if (add_dummy_prefix_ && !whitespace_as_suffix_) out += space_;
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    const CharsMap::Match next = prefix(text);
    std::string_view piece = next.replacement;
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    for (const char c : piece) {
      if (c == ' ') {
        out += space_;
      } else {
        out += c;
      }
    }
    if (!piece.empty()) after_space = remove_extra_whitespaces_ && piece.ends_with(' ');
    record();
    text.remove_prefix(next.bytes);
  }
  size_t end = consumed();
  while (remove_extra_whitespaces_ && out.ends_with(space_)) {
    out.resize(out.size() - space_.size());
    if (norm_to_orig != nullptr) end = (*norm_to_orig)[out.size()];
  }
  if (add_dummy_prefix_ && whitespace_as_suffix_) out += space_;
  if (norm_to_orig != nullptr) {
    norm_to_orig->resize(std::min(norm_to_orig->size(), out.size()));
    norm_to_orig->resize(out.size() + 1, end);
  }
  return out;
}

}  // namespace teratron
