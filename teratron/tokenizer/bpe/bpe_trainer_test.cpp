#include "teratron/tokenizer/bpe/bpe_trainer.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"

namespace teratron {
namespace {

using testing::encode;
using testing::expect_user_error;

DocumentSource source_of(std::vector<std::string> documents) {
  return [documents = std::move(documents), next = size_t{0}](std::string& document) mutable {
    if (next == documents.size()) return false;
    document = documents[next++];
    return true;
  };
}

TEST(TrainBpe, MergesTheMostFrequentPairFirst) {
  // Words: "ab" 3 times, " ab" twice, " cd" twice. Counts: ab 5; then of the pairs with 2 the smallest ids.
  const TrainedBpe bpe = train_bpe(source_of({"ab ab cd", "ab ab", "ab cd"}),
                                   {.vocab_size = 262, .special_tokens = {"<|endoftext|>"}});
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"a", "b"}, {"c", "d"}, {"Ġ", "ab"}, {"Ġ", "cd"}};
  EXPECT_EQ(bpe.merges, expected);
  EXPECT_EQ(bpe.tokens.size(), 256u + 4 + 1);  // nothing is left that occurs twice
  EXPECT_EQ(bpe.tokens.back(), "<|endoftext|>");
}

TEST(TrainBpe, DoesNotDependOnTheOrderOfDocuments) {
  std::vector<std::string> documents;
  for (int i = 0; i < 300; ++i)
    documents.push_back(fmt::format("word{} is {} and {} of them", i % 17, i * 7919 % 101, i));
  const TrainedBpe one = train_bpe(source_of(documents), {.vocab_size = 330});
  std::reverse(documents.begin(), documents.end());
  const TrainedBpe other = train_bpe(source_of(documents), {.vocab_size = 330});
  EXPECT_EQ(one.merges, other.merges);
  EXPECT_EQ(one.tokens.size(), 330u);
}

TEST(TrainBpe, WritesFilesThatBothTokenizersReadAlike) {
  const testing::TemporaryFolder folder;
  const std::string text =
      "the cat sat on the mat, the dog sat on the log: caf\u00e9 \u65e5\u672c\n\n the end";
  const TrainedBpe bpe =
      train_bpe(source_of({text, text}), {.vocab_size = 280, .special_tokens = {"<|endoftext|>", "<pad>"}});
  write_bpe(bpe, folder / "new/folder");
  const std::string at = folder / "new/folder/";
  const auto gpt2 = build_tokenizer({.type = "GPT2BPETokenizer",
                                     .vocab_file = at + "vocab.json",
                                     .merge_file = at + "merges.txt",
                                     .compat_version = "head"});
  const auto hugging_face = build_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = at});
  EXPECT_EQ(gpt2->vocab_size(), 280);
  EXPECT_EQ(hugging_face->vocab_size(), 280);
  EXPECT_EQ(hugging_face->special().eod, 278);
  for (const std::string& probe :
       {text, std::string("unseen words\t<|endoftext|>!"), std::string("\x01\xff")}) {
    EXPECT_EQ(encode(*gpt2, probe), encode(*hugging_face, probe));
  }
  EXPECT_EQ(hugging_face->decode(encode(*hugging_face, text)), text);
  EXPECT_LT(encode(*gpt2, text).size(), text.size() * 3 / 4);
}

TEST(TrainBpe, RefusesWhatCannotWork) {
  const auto train = [](BpeTrainerOptions options) {
    return [options] { train_bpe(source_of({"some text"}), options); };
  };
  expect_user_error(ExitCode::config, "too small for 256 bytes and 1 special", train({.vocab_size = 256}));
  expect_user_error(ExitCode::config, "special token ''", train({.vocab_size = 300, .special_tokens = {""}}));
  expect_user_error(ExitCode::config, "special token 'a'",
                    train({.vocab_size = 300, .special_tokens = {"a"}}));
  expect_user_error(ExitCode::config, "or a duplicate",
                    train({.vocab_size = 300, .special_tokens = {"<s>", "<s>"}}));
  expect_user_error(ExitCode::data, "no text", [] { train_bpe(source_of({"", ""}), {.vocab_size = 300}); });
}

}  // namespace
}  // namespace teratron
