#include "teratron/tokenizer/bpe/hf_tokenizer.h"

#include <chrono>

#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::encode;
using testing::expect_user_error;
using Ids = std::vector<int32_t>;

/// A small tokenizer.json: id = byte for the 256 bytes, then "ab" 256, "abc" 257, " a" 258; <eos> is 300.
json small_tokenizer() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_encode(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["Ġa"] = 258;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 300}, {"content", "<eos>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c", "Ġ a"}}}}};
}

class HuggingFace : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> build(const json& tokenizer) const { return build_text(tokenizer.dump()); }
  std::unique_ptr<Tokenizer> build_text(const std::string& text) const {
    folder_.write("tokenizer.json", text);
    return build_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = folder_.path()});
  }
  void expect_refused(const json& tokenizer, const std::string& fragment) const {
    expect_user_error(ExitCode::data, fragment, [&] { build(tokenizer); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(HuggingFace, MergesByRankAndFindsAddedTokens) {
  const auto tokenizer = build(small_tokenizer());
  EXPECT_EQ(encode(*tokenizer, "abcab ab"), (Ids{257, 256, ' ', 256}));
  EXPECT_EQ(encode(*tokenizer, "ab ac"), (Ids{256, 258, 'c'}));
  EXPECT_EQ(encode(*tokenizer, "ab<eos>c"), (Ids{256, 300, 'c'}));
  EXPECT_EQ(tokenizer->decode(Ids{257, 300, 258}), "abc<eos> a");
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_TRUE(encode(*tokenizer, "").empty());
}

TEST_F(HuggingFace, TakesEosFromTheConfigurationBeside) {
  folder_.write("tokenizer_config.json",
                R"({"eos_token": {"content": "<eos>"}, "bos_token": "ab", "pad_token": null,
                    "model_max_length": 1000000000000000019884624838656})");
  const auto tokenizer = build(small_tokenizer());
  EXPECT_EQ(tokenizer->special().eos, 300);
  EXPECT_EQ(tokenizer->special().eod, 300);
  EXPECT_EQ(tokenizer->special().bos, 256);
  EXPECT_FALSE(tokenizer->special().pad.has_value());
  folder_.write("tokenizer_config.json", "[");
  expect_refused(small_tokenizer(), "tokenizer_config.json: not a JSON object");
}

TEST_F(HuggingFace, IgnoresMergesForWholeTokens) {
  json tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"]["xyz"] = 259;  // no merge leads to it
  EXPECT_EQ(encode(*build(tokenizer), "xyz"), (Ids{'x', 'y', 'z'}));
  tokenizer["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(*build(tokenizer), "xyz"), Ids{259});
}

TEST_F(HuggingFace, PutsTheTemplateAround) {
  json tokenizer = small_tokenizer();
  tokenizer["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}},
     {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<eos>": {"id": "<eos>", "ids": [300], "tokens": ["<eos>"]}}}]})");
  EXPECT_EQ(encode(*build(tokenizer), "ab"), (Ids{300, 256}));
  const auto bare = build_tokenizer({.type = "HuggingFaceTokenizer",
                                     .tokenizer_model = folder_ / "tokenizer.json",
                                     .include_special_tokens = false});
  EXPECT_EQ(encode(*bare, "ab"), Ids{256});
  auto& single = tokenizer["post_processor"]["processors"][1];
  single["special_tokens"]["<eos>"]["ids"] = {5000};
  expect_refused(tokenizer, "5000 is outside the vocabulary");
  single["special_tokens"] = json::object();
  expect_refused(tokenizer, "'<eos>' has no ids");
  single["single"] = json::array();
  expect_refused(tokenizer, "does not contain the text");
}

TEST_F(HuggingFace, StripsAndGuardsAddedTokens) {
  json tokenizer = small_tokenizer();
  tokenizer["added_tokens"] = json::parse(R"([
    {"id": 301, "content": "WW", "single_word": true, "normalized": false},
    {"id": 302, "content": "<l>", "lstrip": true, "normalized": false},
    {"id": 303, "content": "<r>", "rstrip": true, "normalized": false},
    {"id": 304, "content": "<r><r>", "normalized": false}])");
  const auto built = build(tokenizer);
  EXPECT_EQ(encode(*built, "WW-WW xWW"), (Ids{301, '-', 301, ' ', 'x', 'W', 'W'}));
  EXPECT_EQ(encode(*built, "x \t<l> x"), (Ids{'x', 302, ' ', 'x'}));
  EXPECT_EQ(encode(*built, "x <r>\n x"), (Ids{'x', ' ', 303, 'x'}));
  EXPECT_EQ(encode(*built, "<r><r><r>"), (Ids{304, 303}));
}

TEST_F(HuggingFace, NormalisesBeforeSplitting) {
  json tokenizer = small_tokenizer();
  tokenizer["normalizer"] = {{"type", "Sequence"},
                             {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}};
  const auto built = build(tokenizer);
  EXPECT_EQ(encode(*built, "AB<eos>"), (Ids{256, 300}));
  EXPECT_EQ(encode(*built, "E\u0301"), (Ids{0xc3, 0xa9}));
}

TEST_F(HuggingFace, SplitsByOtherPatterns) {
  json tokenizer = small_tokenizer();
  const auto with = [&](const json& pattern, const std::string& behavior, bool invert) {
    tokenizer["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return build(tokenizer);
  };
  EXPECT_EQ(encode(*with({{"Regex", "b"}}, "Isolated", false), "abc"), (Ids{'a', 'b', 'c'}));
  EXPECT_EQ(encode(*with({{"Regex", "b"}}, "MergedWithPrevious", false), "abc"), (Ids{256, 'c'}));
  EXPECT_EQ(encode(*with({{"Regex", "a"}}, "MergedWithNext", false), "abab"), (Ids{256, 256}));
  EXPECT_EQ(encode(*with({{"String", "."}}, "Removed", false), "ab.c"), (Ids{256, 'c'}));
  EXPECT_EQ(encode(*with({{"Regex", "[ab]+"}}, "Removed", true), "ab.c"), Ids{256});
  EXPECT_EQ(encode(*with({{"Regex", "[ab]"}}, "Contiguous", false), "abc"), (Ids{256, 'c'}));
  expect_user_error(ExitCode::data, "invalid regex '('", [&] { with({{"Regex", "("}}, "Isolated", false); });
  expect_user_error(ExitCode::data, "behavior 'Odd'", [&] { with({{"Regex", "a"}}, "Odd", false); });
}

TEST_F(HuggingFace, StopsRegexesThatBacktrackTooMuch) {
  json tokenizer = small_tokenizer();
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a+)+$"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}}}}};
  const auto built = build(tokenizer);
  const auto begin = std::chrono::steady_clock::now();
  expect_user_error(ExitCode::data, "regex failed", [&] { encode(*built, std::string(40, 'a') + "b"); });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 20.0);
}

TEST_F(HuggingFace, RefusesHostileModels) {
  const json good = small_tokenizer();
  const auto changed = [&](const char* path, const json& value) {
    json tokenizer = good;
    tokenizer[json::json_pointer(path)] = value;
    return tokenizer;
  };
  expect_refused(changed("/model/merges/0", "a q!"), "'aq!', which is not in the vocabulary");
  expect_refused(changed("/model/merges/0", "a"), "is not a merge");
  expect_refused(changed("/model/merges/0", json::array({"a"})), "merge 1 is not a pair");
  expect_refused(changed("/model/merges/0", 7), "is not a string");
  expect_refused(changed("/model/merges", "a b"), "'merges' is not an array");
  expect_refused(changed("/model/merges", nullptr), "'merges' is missing");
  expect_refused(changed("/model/vocab", nullptr), "'vocab' is missing");
  expect_refused(changed("/model/vocab", json::array()), "'vocab' is not an object");
  expect_refused(changed("/model/vocab/ab", 97), "belongs to two tokens");
  expect_refused(changed("/model/vocab/ab", 1'900'000'000), "out of range");
  expect_refused(changed("/model/vocab/ab", -1), "is not an id");
  expect_refused(changed("/model/type", "WordLevel"), "model 'WordLevel' is not supported");
  expect_refused(changed("/model/dropout", 0.1), "'dropout' is not supported");
  expect_refused(changed("/model/byte_fallback", true), "'byte_fallback' is not supported");
  expect_refused(changed("/model/end_of_word_suffix", "</w>"), "'end_of_word_suffix' is not supported");
  expect_refused(changed("/model/unk_token", "<unk>"), "unk_token '<unk>' is not in");
  expect_refused(changed("/model", nullptr), "'model' is missing");
}

TEST_F(HuggingFace, RefusesHostileParts) {
  const json good = small_tokenizer();
  const auto changed = [&](const char* path, const json& value) {
    json tokenizer = good;
    tokenizer[json::json_pointer(path)] = value;
    return tokenizer;
  };
  expect_refused(changed("/normalizer", {{"type", "Precompiled"}}), "'Precompiled' is not supported");
  expect_refused(changed("/post_processor", {{"type", "Odd"}}), "'Odd' is not supported");
  expect_refused(changed("/added_tokens/0/id", 97), "id 97 of another token");
  expect_refused(changed("/added_tokens/0/id", 1'000'000'000), "out of range");
  expect_refused(changed("/added_tokens/0/content", ""), "is empty");
  expect_refused(changed("/added_tokens/0/content", "ab"), "is 256 in the vocabulary");
  expect_refused(changed("/added_tokens/0/special", "yes"), "is not a boolean");
  json twice = good;
  twice["added_tokens"].push_back({{"id", 300}, {"content", "<other>"}});
  expect_refused(twice, "shares its id");
  twice["added_tokens"][1] = {{"id", 301}, {"content", "<eos>"}};
  expect_refused(twice, "has two ids");
}

TEST_F(HuggingFace, RefusesDamagedJson) {
  const std::string text = small_tokenizer().dump();
  const auto refuse = [&](const std::string& damaged, const std::string& fragment) {
    expect_user_error(ExitCode::data, fragment, [&] { build_text(damaged); });
  };
  refuse("", "not valid JSON");
  refuse("[]", "is not an object");
  refuse(text.substr(0, text.size() / 2), "not valid JSON");
  refuse(std::string(100'000, '['), "not valid JSON");
  refuse(R"({"model": {}, "model": {}})", "'model' appears twice");
  refuse("{\"model\": \"\xff\"}", "not valid UTF-8");
  // Any prefix is refused, none crashes.
  for (size_t length = 1; length < text.size(); length += 97)
    refuse(text.substr(0, length), "tokenizer.json");
}

TEST_F(HuggingFace, EncodesBytesThatTheVocabularyLacks) {
  json tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"].erase("z");
  EXPECT_EQ(encode(*build(tokenizer), "azzb"), Ids{256});  // dropped, as in the reference
  tokenizer["model"]["vocab"]["<unk>"] = 259;
  tokenizer["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(encode(*build(tokenizer), "azzb"), (Ids{'a', 259, 259, 'b'}));
  tokenizer["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(*build(tokenizer), "azzb"), (Ids{'a', 259, 'b'}));
}

}  // namespace
}  // namespace teratron
