#include "teratron/generate/texts.h"

#include <gtest/gtest.h>

#include "teratron/generate/engine.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/small_config.h"

namespace teratron {
namespace {

// A byte per token: "a" is 0; 26 is the first byte of "\u00e9", 27 its second, 28 a newline, 36 the end.
class LetterTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char c : text) ids.push_back(c == '\n' ? 28 : c - 'a');
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 26 ? static_cast<char>('a' + id) : "\xc3\xa9\n       "[id - 26];
    return text;
  }
  int64_t vocab_size() const override { return 37; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_{.eod = 36};
};

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
  const GeneratedChoice whole = answer(request);
  const std::string text = tokenizer.decode(whole.tokens);
  request.stop.texts = {"not in it", text.substr(10, 3)};
  const size_t begin = text.find(text.substr(10, 3));
  const GeneratedChoice cut = answer(request);
  EXPECT_EQ(cut.finish_reason, "stop");
  EXPECT_EQ(cut.tokens.size(), begin + 3);
  EXPECT_EQ(answer_text(tokenizer, request, cut), text.substr(0, begin));
}

}  // namespace
}  // namespace teratron
