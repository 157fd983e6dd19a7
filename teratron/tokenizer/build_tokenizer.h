// Makes the tokenizer that the options name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct TokenizerOptions {
  std::string type;  // --tokenizer-type: GPT2BPETokenizer, HuggingFaceTokenizer, NullTokenizer...
  std::string vocab_file;
  std::string merge_file;
  /// tokenizer.json or its folder (also --tokenizer-name-or-path), SentencePiece .model, or tiktoken ranks.
  std::string tokenizer_model;
  int64_t vocab_size = 0;  // NullTokenizer, TikTokenizer
  int64_t vocab_extra_ids = 0;
  /// [CLS] ... [SEP], <|begin_of_text|>; off: --tokenizer-hf-no-include-special-tokens.
  bool include_special_tokens = true;
  std::string compat_version = "0.7";   // ids of Megatron-LM 2.6, 0.7 or head
  std::string tiktoken_pattern = "v2";  // and below: tiktoken_tokenizer.h
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> special_tokens;
};

/// UserError(config) for a missing or unknown option, UserError(data) for an invalid file.
std::unique_ptr<Tokenizer> build_tokenizer(const TokenizerOptions& options);

/// What tells the tokenizer of `options` from others: the options, and the content of its files.
std::string tokenizer_fingerprint(const TokenizerOptions& options);

/// What transformers reads the tokenizer from, file name -> contents, where its own files do not serve:
/// BERT's vocab.txt, SentencePiece and tiktoken. Empty for other types. Errors are build_tokenizer()'s, and
/// UserError(data) for a SentencePiece model that tokenizer.json cannot hold.
std::map<std::string, std::string> hf_tokenizer_contents(const TokenizerOptions& options);

}  // namespace teratron
