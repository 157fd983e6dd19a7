// The hand-written scanners against their regexes.
#include "teratron/tokenizer/bpe/pre_tokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "teratron/tokenizer/text/regex_split.h"

namespace teratron {
namespace {

using Words = std::vector<std::string>;

Words split(SplitPattern pattern, std::string_view text) {
  Words words;
  PreTokenizer().split(pattern, text,
                       [&](const char* word, size_t bytes) { words.emplace_back(word, bytes); });
  return words;
}

Words match(const Regex& regex, std::string_view text) {
  Words words;
  for (const Regex::Piece& piece : regex.find_all(text)) words.emplace_back(piece.text);
  return words;
}

/// Text of `pieces` pieces, one of `wide` of which is not ASCII.
std::string random_text(std::mt19937& random, int pieces, int wide) {
  const std::vector<std::string> ascii = {" ",
                                          " ",
                                          "  ",
                                          "\n",
                                          "\r\n",
                                          "\t",
                                          "'",
                                          "''",
                                          "'s",
                                          "'S",
                                          "'ll",
                                          "'l",
                                          "re",
                                          "ve",
                                          "d",
                                          "m",
                                          "t",
                                          "a",
                                          "the",
                                          "Word",
                                          "7",
                                          "42",
                                          "123",
                                          "1234",
                                          "!",
                                          "?!",
                                          "_",
                                          "-",
                                          "'re",
                                          "'v",
                                          std::string(70, 'x'),
                                          std::string(70, ' ')};
  const std::vector<std::string> others = {"é",      "Ж",      "中", "½",          "٣",
                                           "\u2003", "\u00a0", "…",  "\U0001f600", "e\u0301"};
  std::string text;
  for (int i = 0; i < pieces; ++i) {
    const auto& from = random() % static_cast<uint32_t>(wide) == 0 ? others : ascii;
    text += from[random() % from.size()];
  }
  return text;
}

class PreTokenizerTest : public ::testing::TestWithParam<SplitPattern> {};

TEST_P(PreTokenizerTest, SplitsLikeTheRegex) {
  const Regex regex(std::string(pattern_regex(GetParam())), "test");
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const std::string text =
        random_text(random, static_cast<int>(random() % 120), i % 2 == 0 ? 1'000'000 : 25);
    ASSERT_EQ(split(GetParam(), text), match(regex, text)) << "text " << i << ": " << text;
  }
}

TEST_P(PreTokenizerTest, SplitsAllShortStringsAtBlockBorders) {
  const Regex regex(std::string(pattern_regex(GetParam())), "test");
  constexpr std::string_view kCharacters = " \n's";
  for (const size_t before : {0u, 57u, 58u, 59u, 60u, 61u, 62u, 63u, 64u}) {
    for (int code = 0; code < 1024; ++code) {
      std::string text(before, 'x');
      for (int rest = code, i = 0; i < 5; ++i, rest /= 4) text += kCharacters[static_cast<size_t>(rest % 4)];
      text += before % 2 == 0 ? std::string(70, 'y') : "";
      ASSERT_EQ(split(GetParam(), text), match(regex, text)) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, PreTokenizerTest,
                         ::testing::Values(SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2,
                                           SplitPattern::tiktoken_v1));

}  // namespace
}  // namespace teratron
