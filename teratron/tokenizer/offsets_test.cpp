// Token offsets. tests/parity compares random texts with Hugging Face tokenizers.
#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"
#include "teratron/tokenizer/bpe/bytes_to_unicode.h"
#include "teratron/tokenizer/unicode/normalized_string.h"

namespace teratron {
namespace {

using testing::data_file;

/// As `teratron tokenizer encode --offsets` prints them.
std::string offsets(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> tokens;
  for (const TokenSpan& span : tokenizer.encode_with_offsets(text))
    tokens.push_back(fmt::format("{}:{}-{}", span.id, span.begin, span.end));
  return fmt::format("{}", fmt::join(tokens, " "));
}

TEST(NormalizedString, TracksNormalization) {
  const auto rewritten = [](std::string_view text, const unicode::Normalization& normalization) {
    const NormalizedString aligned = NormalizedString::with_alignments(text);
    const NormalizedString out = normalize(aligned.view(), normalization);
    EXPECT_EQ(out.view().text, normalization.text(text));
    std::vector<std::pair<int64_t, int64_t>> alignments;
    for (size_t i = 0; i < out.view().text.size(); ++i)
      alignments.emplace_back(out.view().alignments[i].begin, out.view().alignments[i].end);
    return alignments;
  };
  using Alignments = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(rewritten("aBc", unicode::kLower), (Alignments{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(rewritten("xe\u0301y", unicode::kNfc), (Alignments{{0, 1}, {1, 2}, {1, 2}, {3, 4}}));
  EXPECT_EQ(rewritten("é!", unicode::kNfd), (Alignments{{0, 1}, {0, 1}, {0, 1}, {1, 2}}));
  EXPECT_TRUE(rewritten("", unicode::kNfc).empty());
}

TEST(NormalizedString, CountsInvalidBytesAsOneReplacement) {
  const NormalizedString aligned = NormalizedString::with_alignments("a\xff\xe4\xb8\xad");
  EXPECT_EQ(aligned.view().text, "a\xef\xbf\xbd\xe4\xb8\xad");
  EXPECT_EQ(aligned.view().slice(aligned.view().text.substr(1)).offsets(), (Offsets{1, 3}));
  EXPECT_EQ(NormalizedView{}.offsets(), Offsets{});
}

TEST(Offsets, OfByteLevelTokensCoverWholeCharacters) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_encode(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["Ġa"] = 256;
  nlohmann::json tokenizer = {
      {"added_tokens", {{{"id", 300}, {"content", "<eos>"}, {"special", true}, {"lstrip", true}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"post_processor", {{"type", "BertProcessing"}, {"sep", {"<eos>", 300}}, {"cls", {"a", 97}}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"Ġ a"}}}}};
  const testing::TemporaryFolder folder;
  const auto build = [&] {
    const std::string file = folder.write("tokenizer.json", tokenizer.dump());
    return build_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = file});
  };
  EXPECT_EQ(offsets(*build(), "é a <eos>"), "97:0-0 195:0-1 169:0-1 256:1-3 300:3-9 300:0-0");
  tokenizer["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", true}, {"add_prefix_space", false}};
  EXPECT_EQ(offsets(*build(), "a a"), "97:0-1 256:2-3");
  tokenizer["pre_tokenizer"]["add_prefix_space"] = true;
  tokenizer["post_processor"]["add_prefix_space"] = true;
  EXPECT_EQ(offsets(*build(), "a a"), "256:0-1 256:2-3");
}

TEST(Offsets, OfNullTokenizer) {
  const auto tokenizer = build_tokenizer({.type = "NullTokenizer", .vocab_size = 1000});
  EXPECT_EQ(offsets(*tokenizer, " 5  123\n7"), "5:1-2 123:4-7 7:8-9");
}

TEST(Offsets, MatchEncode) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  TERATRON_NEED_DATA("bert-uncased-vocab.txt");
  const TokenizerOptions gpt2 = {.type = "GPT2BPETokenizer",
                                 .vocab_file = data_file("gpt2-vocab.json"),
                                 .merge_file = data_file("gpt2-merges.txt"),
                                 .compat_version = "head"};
  TokenizerOptions bert = {.type = "BertWordPieceLowerCase",
                           .vocab_file = data_file("bert-uncased-vocab.txt")};
  TokenizerOptions bert_head = bert;
  bert_head.compat_version = "head";
  const std::string text = testing::read_file(data_file("wikitext2-test.txt")).substr(0, 100'000) +
                           " [MASK] <|endoftext|> ΑΣ É\xff 中文 ﬁne \n";
  for (const auto& options : {gpt2, bert, bert_head}) {
    const auto tokenizer = build_tokenizer(options);
    const auto ids = testing::encode(*tokenizer, text);
    const std::vector<TokenSpan> spans = tokenizer->encode_with_offsets(text);
    ASSERT_EQ(spans.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(spans[i].id, ids[i]);
      ASSERT_LE(spans[i].begin, spans[i].end);
    }
  }
}

TEST(Offsets, OfBertReferToTheOriginalText) {
  TERATRON_NEED_DATA("bert-uncased-vocab.txt");
  const auto tokenizer =
      build_tokenizer({.type = "BertWordPieceLowerCase", .vocab_file = data_file("bert-uncased-vocab.txt")});
  const std::vector<TokenSpan> spans = tokenizer->encode_with_offsets("\x01 É tissés中");
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ((std::pair{spans[0].begin, spans[0].end}), (std::pair{int64_t{2}, int64_t{3}}));
  EXPECT_EQ((std::pair{spans[1].begin, spans[2].end}), (std::pair{int64_t{4}, int64_t{10}}));
  EXPECT_EQ((std::pair{spans[3].begin, spans[3].end}), (std::pair{int64_t{10}, int64_t{11}}));
}

}  // namespace
}  // namespace teratron
