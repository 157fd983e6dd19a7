#include "teratron/tokenizer/bert/wordpiece_json.h"

#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::encode;
using testing::expect_user_error;
using Ids = std::vector<int32_t>;

constexpr int32_t kUnk = 1, kCls = 2, kSep = 3, kMask = 4, kUn = 5, kAble = 6, kCafe = 7, kAccented = 8;

json small_wordpiece() {
  json vocab = json::object();
  int id = 0;
  for (const char* const token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "cafe",
                                  "café", "中", "Un", ".", "don", "'", "t"})
    vocab[token] = id++;
  return {
      {"added_tokens",
       {{{"id", kMask}, {"content", "[MASK]"}, {"special", true}, {"normalized", false}},
        {{"id", 20}, {"content", "WORD"}, {"normalized", true}}}},
      {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", true}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor", {{"type", "BertProcessing"}, {"cls", {"[CLS]", kCls}}, {"sep", {"[SEP]", kSep}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 8},
        {"vocab", vocab}}}};
}

class WordPieceJson : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> build(const json& tokenizer, bool special = false) const {
    folder_.write("tokenizer.json", tokenizer.dump());
    return build_tokenizer({.type = "HuggingFaceTokenizer",
                            .tokenizer_model = folder_.path(),
                            .include_special_tokens = special});
  }
  void expect_refused(const char* path, const json& value, const std::string& fragment) const {
    json tokenizer = small_wordpiece();
    tokenizer[json::json_pointer(path)] = value;
    expect_user_error(ExitCode::data, fragment, [&] { build(tokenizer); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(WordPieceJson, SplitsWordsAndFindsAddedTokens) {
  const auto tokenizer = build(small_wordpiece());
  EXPECT_EQ(encode(*tokenizer, "Unable [MASK]x word\t中"), (Ids{kUn, kAble, kMask, kUnk, 20, 9}));
  EXPECT_EQ(encode(*tokenizer, "unableable unableab"), (Ids{kUnk, kUnk}));  // 10 characters; no piece "ab"
  EXPECT_EQ(tokenizer->vocab_size(), 21);
  EXPECT_EQ(tokenizer->special().cls, kCls);
  EXPECT_EQ(tokenizer->special().eod, kSep);
  EXPECT_EQ(tokenizer->special().pad, 0);
  EXPECT_TRUE(tokenizer->continuation_pieces()[kAble]);
  EXPECT_FALSE(tokenizer->continuation_pieces()[kUn]);
  EXPECT_EQ(encode(*build(small_wordpiece(), true), "un"), (Ids{kCls, kUn, kSep}));
  EXPECT_EQ(tokenizer->encode_with_offsets("Un中able."),
            (std::vector<TokenSpan>{{kUn, 0, 2}, {9, 2, 3}, {kUnk, 3, 7}, {11, 7, 8}}));
}

TEST_F(WordPieceJson, StripsAccentsAsTheFileSays) {
  const auto with = [&](bool lower, const json& strip) {
    json tokenizer = small_wordpiece();
    tokenizer["normalizer"]["lowercase"] = lower;
    tokenizer["normalizer"]["strip_accents"] = strip;
    return encode(*build(tokenizer), "café Un");
  };
  EXPECT_EQ(with(true, nullptr), (Ids{kCafe, kUn}));
  EXPECT_EQ(with(true, false), (Ids{kAccented, kUn}));
  EXPECT_EQ(with(false, nullptr), (Ids{kAccented, 10}));
  EXPECT_EQ(with(false, true), (Ids{kCafe, 10}));
  json plain = small_wordpiece();
  plain["normalizer"] = nullptr;
  EXPECT_EQ(encode(*build(plain), "café 中中"), (Ids{kAccented, kUnk}));
}

TEST_F(WordPieceJson, DecodesAsTheFileSays) {
  json tokenizer = small_wordpiece();
  const Ids ids = {kCls, kUn, kAble, 12, 13, 14, 11, 20, kSep};
  EXPECT_EQ(build(tokenizer)->decode(ids), "[CLS] unable don ' t. WORD [SEP]");
  tokenizer["decoder"]["cleanup"] = false;
  EXPECT_EQ(build(tokenizer)->decode(ids), "[CLS] unable don ' t . WORD [SEP]");
  tokenizer["decoder"] = nullptr;
  EXPECT_EQ(build(tokenizer)->decode(ids), "[CLS] un ##able don ' t . WORD [SEP]");
}

TEST_F(WordPieceJson, TakesSpecialTokensFromTheConfigurationBeside) {
  folder_.write("tokenizer_config.json", R"({"cls_token": "un", "eos_token": "cafe"})");
  const auto tokenizer = build(small_wordpiece());
  EXPECT_EQ(tokenizer->special().cls, kUn);
  EXPECT_EQ(tokenizer->special().eod, kCafe);
  EXPECT_EQ(tokenizer->special().mask, kMask);
}

TEST_F(WordPieceJson, RefusesWhatItDoesNotKnow) {
  expect_refused("/normalizer", {{"type", "NFKC"}}, "normalizer of WordPiece 'NFKC' is not supported");
  expect_refused("/pre_tokenizer", {{"type", "Whitespace"}}, "'Whitespace' is not supported");
  expect_refused("/pre_tokenizer", nullptr, "'pre_tokenizer' is missing");
  expect_refused("/decoder", {{"type", "BPEDecoder"}}, "'BPEDecoder' is not supported");
  expect_refused("/model/continuing_subword_prefix", "@@", "'@@' is not supported");
  expect_refused("/model/unk_token", "<none>", "the vocabulary has no <none>");
  expect_refused("/model/max_input_chars_per_word", -1, "is not a number of characters");
  expect_refused("/model/vocab/un", 2'000'000'000, "id 2000000000 of token 'un' is out of range");
  expect_refused("/model/vocab/un", kAble, "belongs to two tokens");
  expect_refused("/added_tokens/1/id", kUn, "has the id 5 of another token");
  expect_refused("/post_processor/sep/1", 99, "99 is outside the vocabulary of 21");
  expect_refused("/normalizer/strip_accents", "yes", "'strip_accents' is not a boolean");
}

TEST_F(WordPieceJson, IsWrittenForAVocabFile) {
  const std::string vocab =
      folder_.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##able\ncafe\n");
  for (const char* const version : {"0.7", "head"}) {
    const TokenizerOptions options{.type = "BertWordPieceLowerCase",
                                   .vocab_file = vocab,
                                   .vocab_extra_ids = 2,
                                   .include_special_tokens = false,
                                   .compat_version = version};
    for (const auto& [name, text] : hf_tokenizer_contents(options)) folder_.write(name, text);
    const auto original = build_tokenizer(options);
    const auto read = build_tokenizer(
        {.type = "HuggingFaceTokenizer", .tokenizer_model = folder_.path(), .include_special_tokens = false});
    const std::string text = "Unable CAFÉ <extra_id_1> [BOS] " + std::string(150, 'x');
    EXPECT_EQ(encode(*read, text), encode(*original, text)) << version;
    EXPECT_EQ(read->vocab_size(), original->vocab_size()) << version;
    EXPECT_EQ(read->special().mask, original->special().mask) << version;
  }
}

}  // namespace
}  // namespace teratron
