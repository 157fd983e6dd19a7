// SentencePiece's normalizer: longest-match replacements (precompiled nmt_nfkc and others), then whitespace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/sentencepiece/sentencepiece_file.h"
#include "teratron/tokenizer/text/byte_trie.h"
#include "teratron/tokenizer/text/chars_map.h"

namespace teratron {

/// U+2581, a space in pieces.
inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";

class SentencePieceNormalizer {
 public:
  /// `protected_pieces` (user-defined ones) are not normalized; it must outlive this object.
  SentencePieceNormalizer(const NormalizerSpec& spec, const ByteTrie& protected_pieces,
                          const std::string& where);

  /// `text` must be valid UTF-8. `norm_to_orig`: the byte of `text` for each byte of the result and for its
  /// end.
  std::string normalize(std::string_view text, std::vector<size_t>* norm_to_orig = nullptr) const;

 private:
  CharsMap::Match prefix(std::string_view text) const;

  CharsMap map_;
  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  const ByteTrie& protected_pieces_;
};

}  // namespace teratron
