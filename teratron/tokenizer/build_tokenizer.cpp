#include "teratron/tokenizer/build_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/tokenizer/bert/bert_vocab.h"
#include "teratron/tokenizer/bpe/gpt2_tokenizer.h"
#include "teratron/tokenizer/bpe/tiktoken_tokenizer.h"
#include "teratron/tokenizer/bpe/vocab_files.h"
#include "teratron/tokenizer/bpe/vocab_folder.h"
#include "teratron/tokenizer/null_tokenizer.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "teratron/tokenizer/tokenizer_json.h"

namespace teratron {
namespace {

constexpr std::array kTypes = {
    "BertWordPieceCase",    "BertWordPieceLowerCase", "GPT2BPETokenizer", "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer", "Llama2Tokenizer",        "NullTokenizer",    "SentencePieceTokenizer",
    "TikTokenizer"};

void require(const std::string& value, std::string_view flag, const TokenizerOptions& options) {
  if (!value.empty()) return;
  throw config_error({.what = fmt::format("--tokenizer-type {} requires {}", options.type, flag),
                      .where = std::string(flag),
                      .fix = fmt::format("add {} <path>", flag)});
}

bool is_head(const TokenizerOptions& options) {
  return options.compat_version == "head";
}

std::unique_ptr<Tokenizer> build_null(const TokenizerOptions& options) {
  if (options.vocab_size <= 0 || options.vocab_size > INT32_MAX - 1) {
    throw config_error({.what = fmt::format("NullTokenizer requires a vocabulary size from 1 to {}, not {}",
                                            INT32_MAX - 1, options.vocab_size),
                        .where = "--vocab-size",
                        .fix = "add --vocab-size <number of ids>"});
  }
  return std::make_unique<NullTokenizer>(options.vocab_size, !is_head(options));
}

std::unique_ptr<Tokenizer> build_gpt2(const TokenizerOptions& options) {
  require(options.vocab_file, "--vocab-file", options);
  require(options.merge_file, "--merge-file", options);
  return std::make_unique<Gpt2BpeTokenizer>(read_vocab_and_merges(options.vocab_file, options.merge_file),
                                            is_head(options));
}

void check_extra_ids(const TokenizerOptions& options) {
  constexpr int64_t kMaxExtraIds = 1'000'000;
  if (options.vocab_extra_ids < 0 || options.vocab_extra_ids > kMaxExtraIds) {
    throw config_error({.what = fmt::format("invalid number of sentinel tokens: {}", options.vocab_extra_ids),
                        .where = "--vocab-extra-ids",
                        .fix = fmt::format("use 0 to {}", kMaxExtraIds)});
  }
}

bool is_bert(const TokenizerOptions& options) {
  return options.type == "BertWordPieceLowerCase" || options.type == "BertWordPieceCase";
}

BertOptions bert_options(const TokenizerOptions& options) {
  require(options.vocab_file, "--vocab-file", options);
  check_extra_ids(options);
  BertOptions bert{.vocab_file = options.vocab_file,
                   .lower_case = options.type == "BertWordPieceLowerCase",
                   .extra_ids = options.vocab_extra_ids,
                   .head = is_head(options),
                   .include_special_tokens = options.include_special_tokens};
  // Megatron-LM head adds T5's sentinels to BertWordPieceCase by default.
  if (bert.head && !bert.lower_case && bert.extra_ids == 0) bert.extra_ids = 100;
  return bert;
}

std::unique_ptr<Tokenizer> build_hugging_face(const TokenizerOptions& options) {
  require(options.tokenizer_model, "--tokenizer-model", options);
  namespace fs = std::filesystem;
  const fs::path given = options.tokenizer_model;
  if (is_vocab_folder(given)) return read_vocab_folder(given, options.include_special_tokens);
  const fs::path file = fs::is_directory(given) ? given / "tokenizer.json" : given;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  return read_tokenizer_json(file.string(), read_special_tokens_map(folder.string()),
                             options.include_special_tokens);
}

std::unique_ptr<SentencePieceTokenizer> build_sentencepiece(const TokenizerOptions& options) {
  require(options.tokenizer_model, "--tokenizer-model", options);
  check_extra_ids(options);
  auto style = SentencePieceStyle::plain;
  if (!is_head(options)) {
    if (options.type == "SentencePieceTokenizer") style = SentencePieceStyle::added_tokens;
    if (options.type == "Llama2Tokenizer") style = SentencePieceStyle::leading_bos;
  }
  return std::make_unique<SentencePieceTokenizer>(read_sentencepiece(options.tokenizer_model), style,
                                                  options.vocab_extra_ids);
}

bool is_sentencepiece(const TokenizerOptions& options) {
  return options.type == "SentencePieceTokenizer" || options.type == "GPTSentencePieceTokenizer" ||
         options.type == "Llama2Tokenizer";
}

TiktokenOptions tiktoken_options(const TokenizerOptions& options) {
  require(options.tokenizer_model, "--tokenizer-model", options);
  return {.file = options.tokenizer_model,
          .pattern = options.tiktoken_pattern,
          .vocab_size = options.vocab_size,
          .special_count = options.tiktoken_num_special_tokens,
          .special_tokens = options.special_tokens,
          .head = is_head(options)};
}

}  // namespace

std::unique_ptr<Tokenizer> build_tokenizer(const TokenizerOptions& options) {
  constexpr std::array kVersions = {"2.6", "0.7", "head"};
  if (std::find(kVersions.begin(), kVersions.end(), options.compat_version) == kVersions.end()) {
    throw config_error(
        {.what = fmt::format("unknown compatibility version '{}'", printable(options.compat_version)),
         .where = "compat version of the tokenizer",
         .fix = fmt::format("use one of {}", fmt::join(kVersions, ", "))});
  }
  if (options.type == "GPT2BPETokenizer") return build_gpt2(options);
  if (is_bert(options)) return std::make_unique<WordPieceTokenizer>(read_bert_vocab(bert_options(options)));
  if (options.type == "HuggingFaceTokenizer") return build_hugging_face(options);
  if (options.type == "NullTokenizer") return build_null(options);
  if (options.type == "TikTokenizer") return std::make_unique<TiktokenTokenizer>(tiktoken_options(options));
  if (is_sentencepiece(options)) return build_sentencepiece(options);
  throw config_error({.what = fmt::format("unknown tokenizer type '{}'", printable(options.type)),
                      .where = "--tokenizer-type",
                      .fix = fmt::format("use one of {}", fmt::join(kTypes, ", "))});
}

std::string tokenizer_fingerprint(const TokenizerOptions& options) {
  namespace fs = std::filesystem;
  const fs::path model = options.tokenizer_model;
  std::vector<fs::path> files = {options.vocab_file, options.merge_file, model};
  const fs::path folder = fs::is_directory(model) ? model : model.parent_path();
  for (const char* name : {"tokenizer.json", "special_tokens_map.json", "tokenizer_config.json"}) {
    if (!model.empty()) files.push_back(folder / name);
  }
  if (is_vocab_folder(model)) files.insert(files.end(), {model / "vocab.json", model / "merges.txt"});
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {}", options.type, options.vocab_size, options.vocab_extra_ids,
                  options.include_special_tokens, options.compat_version, options.tiktoken_pattern,
                  options.tiktoken_num_special_tokens, fmt::join(options.special_tokens, " "));
  for (const fs::path& file : files) {
    const bool is_there = fs::is_regular_file(file);
    text += " " + (is_there ? hash_to_hex(hash_text(read_text(file, {.kind = ExitCode::data}))) : "-");
  }
  return text;
}

std::map<std::string, std::string> hf_tokenizer_contents(const TokenizerOptions& options) {
  if (is_bert(options)) return hf_files_of_bert(bert_options(options));
  if (is_sentencepiece(options)) return build_sentencepiece(options)->hf_files();
  if (options.type == "TikTokenizer") return hf_files_of_tiktoken(tiktoken_options(options));
  return {};
}

}  // namespace teratron
