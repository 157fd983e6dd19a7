// NullTokenizer: the text is a list of ids, decimal numbers separated by whitespace.
#pragma once

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// eod is an extra id, V (vocabulary V + 1), up to Megatron-LM 0.7; V - 1 at head.
class NullTokenizer : public Tokenizer {
 public:
  NullTokenizer(int64_t vocab_size, bool eod_is_extra);

  /// UserError(data) for anything but numbers below vocab_size().
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 private:
  int64_t vocab_size_;
  SpecialTokens special_;
};

}  // namespace teratron
