// TikTokenizer: byte-level BPE defined by token ranks. Of all adjacent pairs, the one whose concatenation is
// the token of the lowest rank is merged first (leftmost on ties); a word in the vocabulary is one token.
//
// Vocabulary files:
//   .json      Megatron-LM's: a list of {"rank", "token_bytes" (base64), "token_str"}; the first 256 are the
//              single bytes. The first `special_count` ids are special tokens (the named ones, then
//              <SPECIAL_n>), id = rank + special_count; the list is truncated to the vocabulary size.
//              An object is Mistral's tekken.json: that list as "vocab", and the pattern, the sizes and the
//              names of the special tokens, which replace the options' defaults.
//   otherwise  tiktoken's: a line "<base64> <rank>" per token. Ids are ranks; special tokens follow the
//              highest rank.
#pragma once

#include "teratron/tokenizer/bpe/byte_level_tokenizer.h"

namespace teratron {

struct TiktokenOptions {
  std::string file;
  std::string pattern = "v2";               // v1, v2 (Megatron-LM's), or a regex
  int64_t vocab_size = 0;                   // of .json; 0: 131072
  int64_t special_count = 1000;             // of .json
  std::vector<std::string> special_tokens;  // empty: the defaults
  /// Megatron-LM head: seven default special tokens (else <unk> <s> </s>), which are also matched in the
  /// text.
  bool head = false;
};

struct TiktokenFile;

class TiktokenTokenizer : public ByteLevelTokenizer {
 public:
  /// UserError(data) for an invalid file, UserError(config) for invalid special tokens.
  explicit TiktokenTokenizer(const TiktokenOptions& options);
  explicit TiktokenTokenizer(const TiktokenFile& file);
};

/// tokenizer.json and tokenizer_config.json with the same ids.
std::map<std::string, std::string> hf_files_of_tiktoken(const TiktokenOptions& options);

}  // namespace teratron
