// Samples beside those that Megatron-LM's own code built, with its tokenizer of words.
#include "teratron/tasks/zeroshot/zeroshot_samples.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/tasks/testing/word_tokenizer.h"
#include "teratron/tasks/text/detokenizer.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using testing::fixture;
using testing::read_json;

// Megatron-LM's form: tokens padded to seq_length + 1, and which positions count.
void expect_window(const ScoredTokens& actual, const nlohmann::json& expected, int64_t pad) {
  auto text = expected.at("text").get<std::vector<int32_t>>();
  std::vector<int64_t> counts(text.size() - 1);
  for (auto i = actual.first; i < static_cast<int64_t>(actual.tokens.size()); ++i) counts.at(i - 1) = 1;
  std::vector<int32_t> padded = actual.tokens;
  padded.resize(text.size(), static_cast<int32_t>(pad));
  EXPECT_EQ(padded, text);
  EXPECT_EQ(counts, expected.at("pad_mask").get<std::vector<int64_t>>());
}

TEST(Detokenizers, GiveMegatronsTexts) {
  const nlohmann::json cases = read_json(fixture("models/detokenizers.json"));
  for (const nlohmann::json& each : cases) {
    const std::string text = each.at("in");
    EXPECT_EQ(detokenize(text, "data/wikitext-103/wiki.test.tokens"), each.at("wiki")) << text;
    EXPECT_EQ(detokenize(text, "wiki/ptb.txt"), each.at("ptb")) << text;
    EXPECT_EQ(detokenize(text, "lambada_test.jsonl"), text);
    EXPECT_EQ(clean_text(text), each.at("clean_text")) << text;
  }
  EXPECT_GT(cases.size(), 4U);
}

TEST(Detokenizers, ThePathNamesTheRules) {
  EXPECT_THROW(detokenize("a", "texts/test.txt"), UserError);
}

TEST(Detokenizers, BlanksInsideOfPairsAreThoseOfPython) {
  EXPECT_EQ(detokenize_wikitext("(\u00a0a ( b\u3000) c ) [ ] ' x"), "(a ( b) c ) [] ' x");
  EXPECT_EQ(clean_text("a\u2003\n\tb . . c"), "a b.. c");
}

TEST(Windows, AreMegatrons) {
  for (const nlohmann::json& each : read_json(fixture("models/tasks.json")).at("wikitext_windows")) {
    std::vector<int32_t> tokens(each.at("tokens").get<size_t>());
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(100 + i);
    const Windows windows(tokens, each.at("seq_length"), each.at("overlap"));
    EXPECT_EQ(windows.size(), each.at("windows").get<int64_t>());
    int64_t i = 0;
    for (const nlohmann::json& sample : each.at("samples")) expect_window(windows.get(i++), sample, 1);
    EXPECT_GT(i, 0);
  }
}

TEST(Windows, CountEachTokenOnce) {
  for (const int64_t count : {2, 5, 37, 100}) {
    for (const int64_t length : {1, 4, 9, 120}) {
      for (int64_t overlap = 1; overlap <= length; overlap += 3) {
        const Windows windows(std::vector<int32_t>(static_cast<size_t>(count)), length, overlap);
        std::vector<int64_t> predicted(static_cast<size_t>(count));
        for (int64_t i = 0; i < windows.size(); ++i) {
          const ScoredTokens window = windows.get(i);
          for (auto t = window.first; t < static_cast<int64_t>(window.tokens.size()); ++t)
            predicted.at(i * overlap + t) += 1;
        }
        EXPECT_EQ(predicted.front(), 0);
        for (int64_t t = 1; t < count; ++t)
          EXPECT_EQ(predicted[t], 1) << count << " " << length << " " << overlap << " " << t;
      }
    }
  }
}

TEST(Lambada, SamplesAreMegatrons) {
  const nlohmann::json file = read_json(fixture("models/tasks.json"));
  const testing::WordTokenizer tokenizer(file);
  for (const nlohmann::json& each : file.at("lambada")) {
    const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "lambada_samples.jsonl";
    std::ofstream(path) << each.at("file").get<std::string>();
    const std::vector<ScoredTokens> samples = lambada_samples(tokenizer, path, each.at("strict"));
    ASSERT_EQ(samples.size(), each.at("samples").size());
    for (size_t i = 0; i < samples.size(); ++i)
      expect_window(samples[i], each.at("samples")[i], each.at("pad"));
  }
}

TEST(Lambada, NamesEachLineThatIsNoSample) {
  const testing::WordTokenizer tokenizer(read_json(fixture("models/tasks.json")));
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "lambada_wrong.jsonl";
  std::ofstream(path) << "{\"text\": \"the cat sat\"}\n{\"txt\": \"the\"}\n{\"text\": \"cat\"}\n[1]\n";
  for (const bool strict : {false, true}) {
    try {
      lambada_samples(tokenizer, path, strict);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      ASSERT_EQ(error.problems().size(), 3U);
      EXPECT_EQ(error.problems()[0].where, path.string() + ":2");
      EXPECT_EQ(error.problems()[1].where, path.string() + ":3");
      EXPECT_EQ(error.problems()[2].where, path.string() + ":4");
    }
  }
}

}  // namespace
}  // namespace teratron
