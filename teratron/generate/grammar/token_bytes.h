// The bytes that each token of a tokenizer adds to a text, in an order that shows their common beginnings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/generate/grammar/byte_grammar.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

class TokenBytes {
 public:
  struct Entry {
    std::string bytes;
    int32_t id = 0;
    size_t common = 0;  // bytes that it shares with the entry before it
  };
  /// Without special tokens, and tokens whose bytes depend on others, such as the single bytes of which
  /// SentencePiece makes rare characters. `vocabulary`: ids of the model.
  TokenBytes(const Tokenizer& tokenizer, int64_t vocabulary);

  /// Sorted by bytes.
  const std::vector<Entry>& entries() const { return entries_; }
  std::string_view of(int32_t id) const;
  int64_t vocabulary() const { return static_cast<int64_t>(places_.size()); }
  /// Bytes that are tokens.
  const ByteSet& single() const { return single_; }

 private:
  std::vector<Entry> entries_;
  std::vector<int32_t> places_;  // in entries_, by id; -1: none
  ByteSet single_;
};

}  // namespace teratron
