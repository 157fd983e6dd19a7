#include "teratron/generate/grammar/answer_constraint.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {
namespace {

// Every byte is a token, and so are some texts that cross the borders of JSON's; the last id ends an answer.
class TextTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : texts_[id - 256];
    return text;
  }
  int64_t vocab_size() const override { return 256 + static_cast<int64_t>(texts_.size()); }
  const SpecialTokens& special() const override { return special_; }

 private:
  std::vector<std::string> texts_ = {"{\"",      "\": ", "\", \"", "\"}",   "}}",     "true",  "tru",
                                     "[[",       "]]",   ", ",     "12",    "1.5",    "\\u00", "\xc3\xa9",
                                     "\xe2\x82", "\n  ", "name",   "names", "\"name", "",      "<end>"};
  SpecialTokens special_{.eos = 276};
};

constexpr int32_t end = 276;

const std::vector<std::string>& schemas() {
  static const std::vector<std::string> all = {
      R"({"type": "object"})",
      R"({"properties": {"name": {"type": "string", "maxLength": 6}, "ages": {"type": "array", "items": {"type": "integer"}},
          "ok": {"type": "boolean"}}, "required": ["name"], "additionalProperties": {"type": "number"}})",
      R"({"anyOf": [{"type": "integer"}, {"enum": ["name", "names", "é"]}, {"type": "array", "items": {"$ref": "#"}}]})",
  };
  return all;
}

// Brute force, token by token.
TokenMask expected_mask(GrammarStates& states, int32_t state, const TextTokenizer& tokenizer) {
  TokenMask mask(tokenizer.vocab_size(), 0);
  for (int32_t id = 0; id < end; ++id) {
    const std::string bytes = tokenizer.decode({&id, 1});
    int32_t at = state;
    for (const char byte : bytes)
      at = at == GrammarStates::none ? at : states.next(at, static_cast<uint8_t>(byte));
    mask[id] = !bytes.empty() && at != GrammarStates::none ? 1 : 0;
  }
  mask[end] = states.may_end(state) ? 1 : 0;
  return mask;
}

TEST(AnswerConstraint, RandomAnswersAreValuesOfTheSchema) {
  const TextTokenizer tokenizer;
  AnswerConstraints constraints(&tokenizer, tokenizer.vocab_size());
  std::mt19937 random(7);
  for (const std::string& schema : schemas()) {
    const AnswerForm form{.one_of = {{.schema = schema, .where = "schema"}}};
    ASSERT_TRUE(constraints.problems(form).empty());
    const AnswerGrammar grammar = answer_grammar(form);
    GrammarStates states(grammar.grammar, grammar.root);
    const auto constraint = constraints.of(form);
    EXPECT_EQ(constraints.of(form), constraint);
    for (int answer = 0; answer < 30; ++answer) {
      AnswerConstraint::Place place;
      std::string text;
      int32_t state = states.start();
      for (int step = 0; !constraint->is_complete(place); ++step) {
        ASSERT_LT(step, 500) << text;
        const auto mask = constraint->allowed(place, {end});
        ASSERT_EQ(*mask, expected_mask(states, state, tokenizer)) << text;
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id <= end; ++id) {
          // Later what closes, so that it ends.
          const bool closes =
              std::string_view("\"}]0").find(static_cast<char>(id)) != std::string_view::npos && id < 128;
          if ((*mask)[id] != 0) allowed.insert(allowed.end(), step > 40 && closes ? 500 : 1, id);
        }
        ASSERT_FALSE(allowed.empty()) << text;
        const int32_t token = allowed[random() % allowed.size()];
        if (token == end) break;
        constraint->advance(place, token);
        for (const char byte : tokenizer.decode({&token, 1})) {
          text += byte;
          state = states.next(state, static_cast<uint8_t>(byte));
        }
      }
      EXPECT_TRUE(states.may_end(state));
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    }
  }
}

TEST(AnswerConstraint, TokensThatAreNotAllowedChangeNothing) {
  const TextTokenizer tokenizer;
  AnswerConstraints constraints(&tokenizer, tokenizer.vocab_size());
  const auto constraint = constraints.of({.one_of = {{.schema = R"({"const": "a"})"}}});
  AnswerConstraint::Place place;
  for (const char byte : std::string("x\"bxa\"")) constraint->advance(place, byte);
  EXPECT_TRUE(constraint->is_complete(place));
  const auto mask = constraint->allowed(place, {end});
  EXPECT_EQ(std::ranges::count(*mask, 1), 1);
  EXPECT_EQ((*mask)[end], 1);
}

TEST(AnswerConstraint, TokenizersThatCannotWriteJson) {
  const AnswerForm form{.one_of = {{.schema = "true"}}};
  EXPECT_EQ(AnswerConstraints(nullptr, 100).problems(form).size(), 1U);
  const auto numbers = build_tokenizer({.type = "NullTokenizer", .vocab_size = 100});
  const std::vector<Problem> problems = AnswerConstraints(numbers.get(), 100).problems(form);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].what.find("the tokenizer cannot write JSON"), std::string::npos);
  EXPECT_TRUE(AnswerConstraints(numbers.get(), 100).problems({}).empty());
}

}  // namespace
}  // namespace teratron
