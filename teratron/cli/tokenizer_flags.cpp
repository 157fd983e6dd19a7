#include "teratron/cli/tokenizer_flags.h"

#include <CLI/CLI.hpp>

#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

void add_tokenizer_flags(CLI::App& app, TokenizerOptions& options) {
  app.add_option("--tokenizer-type", options.type,
                 "GPT2BPETokenizer, HuggingFaceTokenizer, NullTokenizer...");
  app.add_option("--vocab-file", options.vocab_file, "vocab.json, or the vocab.txt of BERT");
  app.add_option("--merge-file", options.merge_file, "merges.txt");
  app.add_option("--tokenizer-model,--tokenizer-name-or-path", options.tokenizer_model,
                 "tokenizer.json or its folder, SentencePiece .model, tiktoken ranks");
  app.add_option("--vocab-size", options.vocab_size, "vocabulary size of NullTokenizer and TikTokenizer");
  app.add_option("--vocab-extra-ids", options.vocab_extra_ids, "number of sentinel tokens <extra_id_n>");
  app.add_flag("!--tokenizer-hf-no-include-special-tokens", options.include_special_tokens,
               "do not add special tokens such as [CLS] ... [SEP] or <|begin_of_text|>");
  app.add_option("--tiktoken-pattern", options.tiktoken_pattern, "v1, v2 or a regular expression")
      ->capture_default_str();
  app.add_option("--tiktoken-num-special-tokens", options.tiktoken_num_special_tokens,
                 "number of special tokens of TikTokenizer, named and unnamed")
      ->capture_default_str();
  app.add_option("--tokenizer-special-tokens", options.special_tokens,
                 "names of TikTokenizer's special tokens");
  app.add_option("--compat-version", options.compat_version,
                 "match the ids and files of Megatron-LM 2.6, 0.7 or head")
      ->capture_default_str();
}

}  // namespace teratron
