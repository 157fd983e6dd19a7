// TikTokenizer on vocabularies made here; tests/parity compares with tiktoken itself.
#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"
#include "teratron/tokenizer/base64.h"
#include "teratron/tokenizer/bpe/tiktoken_tokenizer.h"

namespace teratron {
namespace {

using testing::encode;
using testing::expect_user_error;
using Ids = std::vector<int32_t>;

/// The 256 bytes and a few words.
std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* const token : {"aa", "aaa", "ab", " a", "abab"}) tokens.emplace_back(token);  // 256 to 260
  return tokens;
}

std::string json_file(const testing::TemporaryFolder& folder, const std::vector<std::string>& tokens) {
  auto list = nlohmann::json::array();
  for (size_t i = 0; i < tokens.size(); ++i)
    list.push_back({{"rank", i}, {"token_bytes", encode_base64(tokens[i])}});
  return folder.write("vocab.json", list.dump());
}

std::string line_file(const testing::TemporaryFolder& folder, const std::vector<std::string>& tokens) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text += fmt::format("{} {}\n", encode_base64(tokens[i]), i);
  return folder.write("vocab.tiktoken", text);
}

TEST(Tiktoken, MergesByRankAndShiftsBySpecialTokens) {
  const testing::TemporaryFolder folder;
  TokenizerOptions options{.type = "TikTokenizer", .vocab_size = 271, .tiktoken_num_special_tokens = 10};
  options.tokenizer_model = json_file(folder, vocabulary());
  const auto tokenizer = build_tokenizer(options);
  EXPECT_EQ(tokenizer->vocab_size(), 271);
  EXPECT_EQ(tokenizer->special().eod, 2);
  EXPECT_EQ(tokenizer->special().bos, 1);
  EXPECT_FALSE(tokenizer->special().pad.has_value());
  EXPECT_EQ(encode(*tokenizer, "aaaa"), (Ids{266, 266}));   // aa aa; no aaaa
  EXPECT_EQ(encode(*tokenizer, "aaaaa"), (Ids{266, 267}));  // aa aa a, and the second pair is aaa
  EXPECT_EQ(encode(*tokenizer, "abab"), Ids{270});          // a word that is a token
  EXPECT_EQ(encode(*tokenizer, "b a"), (Ids{10 + 'b', 269}));
  EXPECT_EQ(encode(*tokenizer, "</s>").size(), 4u);  // ordinary text
  EXPECT_EQ(tokenizer->decode(Ids{2, 9, 270, 10 + 'x'}), "</s><SPECIAL_9>ababx");
  options.compat_version = "head";
  const auto head = build_tokenizer(options);
  EXPECT_EQ(encode(*head, "a</s><pad>"), (Ids{10 + 'a', 2, 4}));
  EXPECT_EQ(head->special().pad, 4);
}

TEST(Tiktoken, LinesOfRanksKeepTheirIds) {
  const testing::TemporaryFolder folder;
  TokenizerOptions options{.type = "TikTokenizer", .tiktoken_pattern = "v1"};
  options.tokenizer_model = line_file(folder, vocabulary());
  const auto tokenizer = build_tokenizer(options);
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->special().eod, 261);
  EXPECT_EQ(encode(*tokenizer, "abab aa"), (Ids{260, 32, 256}));
  options.tiktoken_pattern = "a.|x";  // gaps are dropped
  EXPECT_EQ(encode(*build_tokenizer(options), "x?aa"), (Ids{'x', 256}));
}

TEST(Tiktoken, RefusesDamagedFilesAndOptionsThatDoNotFit) {
  const testing::TemporaryFolder folder;
  const auto build = [](const std::string& file, int64_t vocab_size, int64_t special = 10,
                        std::vector<std::string> names = {}) {
    return [=] {
      TokenizerOptions options{.type = "TikTokenizer",
                               .vocab_size = vocab_size,
                               .tiktoken_num_special_tokens = special,
                               .special_tokens = names};
      options.tokenizer_model = file;
      build_tokenizer(options);
    };
  };
  const std::string good = json_file(folder, vocabulary());
  expect_user_error(ExitCode::config, "from the 261 tokens", build(good, 500));
  expect_user_error(ExitCode::config, "from the 261 tokens", build(good, 100));
  expect_user_error(ExitCode::config, "<s> is missing", build(good, 271, 10, {"<unk>", "</s>"}));
  expect_user_error(ExitCode::config, "more than 2", build(good, 263, 2));
  expect_user_error(ExitCode::config, "listed twice", build(good, 271, 10, {"<unk>", "<s>", "</s>", "<s>"}));
  expect_user_error(ExitCode::data, "not a JSON list", build(folder.write("a.json", "{}"), 300));
  expect_user_error(ExitCode::data, "entry 0", build(folder.write("a.json", "[{\"rank\": 1}]"), 300));
  expect_user_error(ExitCode::data, "not valid base64",
                    build(folder.write("a.json", R"([{"rank": 0, "token_bytes": "?"}])"), 300));
  for (const char* const line : {"YQ== x", "YQ==", "YQ= 1", "Y?== 1", " 1", "YQ== -1"}) {
    expect_user_error(ExitCode::data, "a.tiktoken:1", build(folder.write("a.tiktoken", line), 0));
  }
  expect_user_error(ExitCode::data, "no token for the byte 0",
                    build(folder.write("a.tiktoken", "YQ== 0\n"), 0));
  std::vector<std::string> repeated = vocabulary();
  repeated.emplace_back("aa");
  expect_user_error(ExitCode::data, "appears twice", build(line_file(folder, repeated), 0));
  expect_user_error(ExitCode::config, "have 262 ids, not 300", build(line_file(folder, vocabulary()), 300));
}

}  // namespace
}  // namespace teratron
