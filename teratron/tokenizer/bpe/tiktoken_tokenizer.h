// TikTokenizer: byte-level BPE whose merges follow from the ranks of the tokens: of all adjacent pairs the one whose
// joined bytes are the token of lowest rank is joined first (leftmost of equals); a word that is a token is that token.
//
// Vocabulary files:
//   .json      Megatron-LM's: a list of {"rank", "token_bytes" (base64), "token_str"}, the first 256 the single
//              bytes. The first `special_count` ids are special tokens (the named ones, then <SPECIAL_n>), id =
//              rank + special_count; the list is cut to the vocabulary.
//   otherwise  tiktoken's: a line "<base64> <rank>" for each token. Ids are ranks; the special tokens come behind
//              the highest rank.
#pragma once

#include <unordered_map>

#include "teratron/tokenizer/bpe/added_tokens.h"
#include "teratron/tokenizer/bpe/bpe_model.h"
#include "teratron/tokenizer/bpe/regex_split.h"
#include "teratron/tokenizer/bpe/token_sink.h"

namespace teratron {

struct TiktokenOptions {
  std::string file;
  std::string pattern = "v2";               // v1, v2 (Megatron-LM's), or a regular expression
  int64_t vocab_size = 0;                   // of .json; 0: 131072
  int64_t special_count = 1000;             // of .json
  std::vector<std::string> special_tokens;  // empty: the usual ones
  /// As Megatron-LM's head: seven usual special tokens (else <unk> <s> </s>), and literal ones in a text are them.
  bool head = false;
};

class TiktokenTokenizer : public Tokenizer {
 public:
  /// Throws UserError(data) for a damaged file, UserError(config) for special tokens that do not fit.
  explicit TiktokenTokenizer(const TiktokenOptions& options);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override {
    return model_.decode(ids, special_content_);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 private:
  void encode_parts(AlignedView text, TokenSink& sink) const;
  void name_special_tokens(const std::vector<std::string>& names, int32_t first_id, bool literal);

  BpeModel model_;
  mutable WordCachePool caches_;
  std::optional<SplitPattern> known_pattern_;
  std::optional<Regex> regex_;  // when the pattern is none of the known ones
  AddedTokenMatcher literal_;
  std::unordered_map<int32_t, std::string> special_content_;
  SpecialTokens special_;
  int64_t vocab_size_ = 0;
};

}  // namespace teratron
