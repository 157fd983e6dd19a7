#include "teratron/generate/texts.h"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/generate/engine.h"
#include "teratron/generate/token_rules.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/generation/letter_tokenizer.h"
#include "teratron/testing/small_config.h"
#include "teratron/tokenizer/base64.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/tokenizer/null_tokenizer.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {
namespace {

GenerationRequest with_stops(std::vector<std::string> texts) {
  return {.prompt = {0, 1}, .stop = {.tokens = {36}, .texts = std::move(texts)}};
}

TEST(TextStream, ShowsNothingThatMayBecomeAStop) {
  const LetterTokenizer tokenizer;
  TextStream stream(tokenizer, with_stops({"xyz", "q"}));
  EXPECT_EQ(stream.add(2), "c");
  EXPECT_EQ(stream.add(23), "");    // x
  EXPECT_EQ(stream.add(24), "");    // y
  EXPECT_EQ(stream.add(23), "xy");  // another x
  EXPECT_EQ(stream.add(24), "");
  EXPECT_EQ(stream.add(25), "");  // xyz
  EXPECT_EQ(stream.add(3), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, ShowsCompleteCharactersAndTheRestAtTheEnd) {
  const LetterTokenizer tokenizer;
  TextStream stream(tokenizer, with_stops({"xyz"}));
  EXPECT_EQ(stream.add(26), "");
  EXPECT_EQ(stream.add(27), "\xc3\xa9");
  EXPECT_EQ(stream.add(23), "");
  EXPECT_EQ(stream.add(36), "") << "the end is not text";
  EXPECT_EQ(stream.finish(), "x");
}

TEST(Texts, AnswersEndBeforeTheirStop) {
  const LetterTokenizer tokenizer;
  const GenerationRequest request = with_stops({"de"});
  EXPECT_EQ(answer_text(tokenizer, request, {.tokens = {2, 3, 4, 5}, .finish_reason = "stop"}), "c");
  EXPECT_EQ(answer_text(tokenizer, request, {.tokens = {2, 36}, .finish_reason = "stop"}), "c");
  EXPECT_EQ(answer_text(tokenizer, request, {.tokens = {2, 3}, .finish_reason = "length"}), "cd");
  const NewlineTokens ids = newline_tokens(tokenizer);
  EXPECT_EQ(ids.newline, 28);
  EXPECT_EQ(ids.double_newline, -1);
}

TEST(Texts, StopsAreFoundAcrossTheBordersOfTokens) {
  const LetterTokenizer tokenizer;
  GPTConfig config = small_config();
  config.max_positions = 48;
  config.init_std = 0.3;
  ParameterSet parameters({.dtype = at::kDouble, .seed = 9});
  const LanguageModel model = language_model(gpt_plan(config, {}), parameters, {});
  SingleHostGroup ranks;
  Engine engine(model, {.tokenizer = &tokenizer, .max_rows = 2}, ranks);
  const auto answer = [&](const GenerationRequest& request) {
    engine.submit(request);
    while (engine.step()) {
    }
    return engine.take_results().at(0).choices.at(0);
  };
  GenerationRequest request{.prompt = {3, 1, 4}, .max_new_tokens = 40, .sampling = {.seed = 5}};
  request.skip_special_tokens = false;
  const GeneratedChoice whole = answer(request);
  const std::string text = tokenizer.decode(whole.tokens);
  request.stop.texts = {"not in it", text.substr(10, 3)};
  const size_t begin = text.find(text.substr(10, 3));
  const GeneratedChoice cut = answer(request);
  EXPECT_EQ(cut.finish_reason, "stop");
  EXPECT_EQ(cut.tokens.size(), begin + 3);
  EXPECT_EQ(answer_text(tokenizer, request, cut), unicode::replace_invalid(text.substr(0, begin)));
}

// ---- Streams, for tokenizers of every kind ----

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

const Json spaces = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
const Json bytes = {{"type", "ByteFallback"}};
const Json fuse = {{"type", "Fuse"}};

Json strip(int64_t start, int64_t stop) {
  return {{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
}

Json replace(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

Ids encoded(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

// A BPE of characters with byte fallback: <unk> <s> </s>, 256 bytes, then these pieces.
std::unique_ptr<Tokenizer> character_bpe(const Json& decoder) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  for (const char* const piece :
       {"\u2581", "a", "b", "\u2581a", "\u2581\u2581", "\u00e9", "ab", "e", "n", "d"})
    tokens.emplace_back(piece);
  Json vocab = Json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  Json added = Json::array();
  for (int id = 0; id < 3; ++id)
    added.push_back({{"id", id}, {"content", tokens[static_cast<size_t>(id)]}, {"special", true}});
  const Json normalizer = {{"type", "Sequence"},
                           {"normalizers",
                            {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                             {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  const Json file = {{"added_tokens", added},
                     {"normalizer", normalizer},
                     {"decoder", decoder},
                     {"model",
                      {{"type", "BPE"},
                       {"unk_token", "<unk>"},
                       {"fuse_unk", true},
                       {"byte_fallback", true},
                       {"vocab", vocab},
                       {"merges", {"\u2581 a", "\u2581 \u2581", "a b"}}}}};
  testing::write_bytes(folder / "tokenizer.json", file.dump());
  return build_tokenizer({.type = "HuggingFaceTokenizer", .tokenizer_model = folder.path().string()});
}

Json sequence(const Json& decoders) {
  return {{"type", "Sequence"}, {"decoders", decoders}};
}

// All bytes and few merges.
std::unique_ptr<Tokenizer> byte_level() {
  const testing::TemporaryFolder folder;
  std::string lines;
  for (int byte = 0; byte < 256; ++byte)
    lines += fmt::format("{} {}\n", encode_base64(std::string(1, static_cast<char>(byte))), byte);
  lines += fmt::format("{} 256\n{} 257\n", encode_base64("ab"), encode_base64("\xf0\x9f"));
  testing::write_bytes(folder / "ranks.tiktoken", lines);
  return build_tokenizer({.type = "TikTokenizer", .tokenizer_model = folder / "ranks.tiktoken"});
}

std::unique_ptr<Tokenizer> sentencepiece(SentencePieceStyle style, bool trims) {
  SentencePieceSpec spec{.kind = SentencePieceSpec::Kind::bpe, .byte_fallback = true, .where = "test"};
  spec.normalizer.remove_extra_whitespaces = trims;
  spec.pieces = {
      {"<unk>", 0, PieceType::unknown}, {"<s>", 0, PieceType::control}, {"</s>", 0, PieceType::control}};
  for (int byte = 0; byte < 256; ++byte)
    spec.pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, PieceType::byte});
  float score = 0;
  for (const char* const piece : {"\u2581", "a", "b", "\u2581a", "\u2581\u2581", "\u00e9", "ab"})
    spec.pieces.push_back({piece, score -= 1, PieceType::normal});
  spec.bos_piece = "<s>", spec.eos_piece = "</s>", spec.unk_surface = " \u2047 ";
  return std::make_unique<SentencePieceTokenizer>(std::move(spec), style, 4);
}

std::unique_ptr<Tokenizer> word_pieces() {
  const testing::TemporaryFolder folder;
  testing::write_bytes(folder / "vocab.txt",
                       "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n.\n'\n##s\n\u00e9\n");
  return build_tokenizer({.type = "BertWordPieceLowerCase", .vocab_file = folder / "vocab.txt"});
}

std::vector<std::unique_ptr<Tokenizer>> every_kind() {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(character_bpe(sequence({spaces, bytes, fuse, strip(1, 0)})));  // Llama 2, Mistral
  all.push_back(character_bpe(sequence({spaces, bytes, fuse})));               // Gemma
  all.push_back(character_bpe(nullptr));
  all.push_back(
      character_bpe({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}));
  all.push_back(character_bpe(sequence({bytes, fuse, spaces, strip(2, 2)})));
  all.push_back(
      character_bpe(sequence({bytes, fuse, replace("String", "ab", "x"), replace("Regex", "b+", "y")})));
  all.push_back(character_bpe(sequence({strip(1, 1), fuse, bytes, replace("String", "aa", "a")})));
  all.push_back(byte_level());
  all.push_back(sentencepiece(SentencePieceStyle::plain, true));
  all.push_back(sentencepiece(SentencePieceStyle::plain, false));
  all.push_back(sentencepiece(SentencePieceStyle::added_tokens, true));
  all.push_back(word_pieces());
  all.push_back(std::make_unique<NullTokenizer>(300, true));
  return all;
}

struct Random {
  std::mt19937 generator{5};
  size_t below(size_t n) { return generator() % n; }
  // Bytes of characters, some of them broken, between words.
  std::string text() {
    std::string text;
    for (size_t parts = below(8); parts > 0; --parts) {
      const char* const known[] = {" ", "a", "ab", "\u00e9", "\U0001fabf", "\u4f60", "  ", "b"};
      if (below(4) == 0) {
        text += static_cast<char>(below(256));
      } else {
        text += known[below(std::size(known))];
      }
    }
    return text;
  }
  // The ids of a text of bytes, or any.
  Ids ids(const Tokenizer& tokenizer) {
    Ids ids;
    if (below(2) == 0) {
      try {
        tokenizer.encode(text(), ids);
      } catch (const UserError&) {  // NullTokenizer
      }
      if (below(2) == 0 && !ids.empty()) ids.erase(ids.begin() + static_cast<int64_t>(below(ids.size())));
      return ids;
    }
    for (size_t count = below(10); count > 0; --count)
      ids.push_back(static_cast<int32_t>(below(static_cast<size_t>(tokenizer.vocab_size()))));
    return ids;
  }
};

std::string streamed(const Tokenizer& tokenizer, const GenerationRequest& request, const Ids& answer) {
  TextStream stream(tokenizer, request);
  std::string text;
  for (const int32_t token : answer) {
    const std::string delta = stream.add(token);
    EXPECT_TRUE(unicode::is_valid(delta));
    text += delta;
  }
  return text + stream.finish();
}

TEST(TextStreams, AreTheAnswerForEveryTokenizerCutAnywhere) {
  Random random;
  for (const auto& tokenizer : every_kind()) {
    for (int round = 0; round < 1500; ++round) {
      GenerationRequest request{.prompt = random.ids(*tokenizer)};
      request.skip_special_tokens = random.below(2) == 0;
      const Ids answer = random.ids(*tokenizer);
      GeneratedChoice choice{.tokens = answer, .finish_reason = "length"};
      std::string whole = answer_text(*tokenizer, request, choice);
      ASSERT_EQ(streamed(*tokenizer, request, answer), whole) << round;
      ASSERT_TRUE(unicode::is_valid(whole));
      if (whole.empty()) continue;
      // A stop text, and one that only begins.
      size_t begin = random.below(whole.size()), end = begin + 1 + random.below(4);
      begin -= unicode::truncated_bytes(whole.substr(0, begin));
      end -= unicode::truncated_bytes(whole.substr(0, end));
      request.stop.texts = {whole.substr(begin) + "z"};
      if (begin < end) request.stop.texts.push_back(whole.substr(begin, end - begin));
      ASSERT_EQ(streamed(*tokenizer, request, answer), answer_text(*tokenizer, request, choice)) << round;
    }
  }
}

// What is decoded is the text of prompt and answer together.
TEST(TextStreams, ContinueThePrompt) {
  Random random;
  for (const auto& tokenizer : every_kind()) {
    for (int round = 0; round < 300; ++round) {
      const Ids all = random.ids(*tokenizer);
      const auto cut = static_cast<int64_t>(random.below(all.size() + 1));
      GenerationRequest request{.prompt = {all.begin(), all.begin() + cut}};
      request.skip_special_tokens = false;
      const std::string prompt = unicode::replace_invalid(tokenizer->decode(request.prompt));
      const std::string whole = unicode::replace_invalid(tokenizer->decode(all));
      if (!whole.starts_with(prompt)) continue;  // the cut divides a character
      EXPECT_EQ(prompt + answer_text(*tokenizer, request, {.tokens = {all.begin() + cut, all.end()}}), whole);
    }
  }
}

// Mistral's decoders; transformers gives ' \U0001fabf and'.
TEST(TextStreams, HoldBytesBackUntilTheirCharacterIsComplete) {
  const auto tokenizer = character_bpe(sequence({spaces, bytes, fuse, strip(1, 0)}));
  const Ids ids = encoded(*tokenizer, "a \U0001fabf and");
  EXPECT_EQ(ids.size(), 9U);  // a blank and "a", a blank, four bytes, a blank and "a", "n", "d"
  TextStream stream(*tokenizer, {.prompt = {ids[0]}});
  std::vector<std::string> deltas;
  for (size_t i = 1; i < ids.size(); ++i) deltas.push_back(stream.add(ids[i]));
  EXPECT_EQ(deltas, (std::vector<std::string>{" ", "", "", "", "", "\U0001fabf a", "n", "d"}));
  EXPECT_EQ(stream.finish(), "");
}

// Alone, the decoder cuts the blank off the first token.
TEST(TextStreams, StopsBeginWithTheAnswersFirstBlank) {
  const auto tokenizer = character_bpe(sequence({spaces, bytes, fuse, strip(1, 0)}));
  TokenRules rules({}, tokenizer.get(), tokenizer->vocab_size());
  const GenerationRequest request{.prompt = encoded(*tokenizer, "b"), .stop = {.texts = {" a"}}};
  const int32_t blank_a = encoded(*tokenizer, "a").at(0);
  EXPECT_EQ(tokenizer->decode(Ids{blank_a}), "a");
  AnswerProgress progress = rules.begin(request);
  EXPECT_TRUE(rules.is_stop(request.stop, request.prompt.back(), blank_a, progress));
  EXPECT_EQ(answer_text(*tokenizer, request, {.tokens = {blank_a}, .finish_reason = "stop"}), "");
}

// Texts leave special tokens out, but people name them as the end of an answer.
TEST(TextStreams, StopAtSpecialTokensByTheirText) {
  const auto tokenizer = character_bpe(sequence({spaces, bytes, fuse}));
  TokenRules rules({}, tokenizer.get(), tokenizer->vocab_size());
  for (const bool skips : {true, false}) {
    GenerationRequest request{.prompt = {260}, .stop = {.texts = {"</s>"}}};
    request.skip_special_tokens = skips;
    AnswerProgress progress = rules.begin(request);
    EXPECT_FALSE(rules.is_stop(request.stop, 260, 261, progress));
    EXPECT_FALSE(rules.is_stop(request.stop, 261, 1, progress)) << "another special token";
    EXPECT_TRUE(rules.is_stop(request.stop, 1, 2, progress)) << skips;
  }
}

// What answers in JSON are made of: the blank that a token begins with counts, wherever it stands.
TEST(TextStreams, BytesOfTokensAreThoseBehindOtherText) {
  const auto tokenizer = character_bpe(sequence({spaces, bytes, fuse, strip(1, 0)}));
  const TokenBytes tokens(*tokenizer, tokenizer->vocab_size());
  EXPECT_EQ(tokens.of(encoded(*tokenizer, "a").at(0)), " a");
  EXPECT_EQ(tokens.of(1), "") << "a special token";
  EXPECT_TRUE(tokens.single().test('{')) << "one of the tokens of a byte";
}

TEST(TextStreams, LeaveSpecialTokensOutUnlessAsked) {
  const auto tokenizer = character_bpe(sequence({spaces, bytes, fuse}));
  GenerationRequest request{.prompt = {260}};
  const GeneratedChoice choice{.tokens = {261, 1, 260, 2}, .finish_reason = "length"};
  EXPECT_EQ(answer_text(*tokenizer, request, choice), "ba");
  EXPECT_EQ(streamed(*tokenizer, request, choice.tokens), "ba");
  request.skip_special_tokens = false;
  EXPECT_EQ(answer_text(*tokenizer, request, choice), "b<s>a</s>");
  EXPECT_EQ(streamed(*tokenizer, request, choice.tokens), "b<s>a</s>");
}

}  // namespace
}  // namespace teratron
