#include "teratron/tasks/eval/eval_samples.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "teratron/tasks/eval/answer_match.h"
#include "teratron/tasks/testing/word_tokenizer.h"

namespace teratron {
namespace {

// A token for each byte, but one for " t", which merges over the border of context and continuation.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() { special_.eod = 300; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i, 2) == " t";
      ids.push_back(pair ? 256 : static_cast<uint8_t>(text[i]));
      i += pair ? 1 : 0;
    }
  }
  std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += id == 256 ? " t" : std::string(1, static_cast<char>(id));
    return text;
  }
  int64_t vocab_size() const override { return 301; }
  const SpecialTokens& special() const override { return special_; }

 private:
  SpecialTokens special_;
};

class EvalSamples : public ::testing::Test {
 protected:
  EvalData read(const std::string& lines) {
    std::ofstream(path_) << lines;
    return read_eval_data(path_, reader_);
  }
  std::vector<Problem> problems(const std::string& lines) {
    try {
      read(lines);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      return error.problems();
    }
    return {};
  }
  std::string text(const GenerationRequest& request) const {
    std::vector<int32_t> ids = request.prompt;
    std::erase(ids, 300);
    return tokenizer_.decode(ids);
  }

  ByteTokenizer tokenizer_;
  RequestReader requests_{.defaults = {.max_new_tokens = 4, .sampling = {.top_k = 1}},
                          .tokenizer = &tokenizer_,
                          .document_end = 300};
  EvalReader reader_{requests_,
                     {.vocabulary = 301, .max_positions = 20, .max_rows = 4, .has_tokenizer = true}};
  std::string path_ = (std::filesystem::path(::testing::TempDir()) / "eval_samples.jsonl").string();
};

TEST_F(EvalSamples, BlanksAtTheEndOfAContextBelongToTheContinuation) {
  const EvalData data = read(R"({"context": "in  ", "continuation": "two"}
{"context": "in", "continuation": " two", "id": "b"}

{"context": "in", "continuation": "two", "delimiter": " "}
)");
  ASSERT_EQ(data.requests.size(), 3U);
  const std::vector<int32_t> two = {'i', 'n', 256, 'w', 'o'};
  EXPECT_EQ(data.requests[0].prompt, (std::vector<int32_t>{'i', 'n', ' ', 256, 'w', 'o'}));
  for (const size_t i : {1, 2}) EXPECT_EQ(data.requests[i].prompt, two);
  for (const GenerationRequest& request : data.requests) {
    EXPECT_EQ(request.logprobs_from, 2);
    EXPECT_EQ(request.max_new_tokens, 0);
    EXPECT_TRUE(request.logprobs && request.top_logprobs == 1);
  }
  EXPECT_EQ(data.samples[1].id, "b");
  EXPECT_EQ(data.samples[2].line, 4);
}

TEST_F(EvalSamples, ATextWithoutContextFollowsTheEndOfADocument) {
  const EvalData data = read(R"({"context": " ", "continuation": "two"})");
  EXPECT_EQ(data.requests[0].prompt, (std::vector<int32_t>{300, 256, 'w', 'o'}));
  EXPECT_EQ(data.requests[0].logprobs_from, 1);
}

TEST_F(EvalSamples, LongTextsLoseTheirBeginning) {
  const EvalData data = read(R"({"context": "0123456789012345678", "continuation": "abc"}
{"prompt": "0123456789012345678", "answer": "x"}
)");
  EXPECT_EQ(data.truncated, 2);
  EXPECT_EQ(text(data.requests[0]), "123456789012345678abc");  // the positions and one more
  EXPECT_EQ(data.requests[0].logprobs_from, 18);
  EXPECT_EQ(text(data.requests[1]), "3456789012345678");  // with room for 4 new tokens
}

TEST_F(EvalSamples, ChoicesAreRequestsAndTheAnswerIsANumberOrAText) {
  const EvalData data = read(R"({"context": "a", "choices": [" b", " cc"], "answer": 1, "topic": 3}
{"context": "a", "choices": [" b", " cc"], "answer": " b"}
)");
  ASSERT_EQ(data.requests.size(), 4U);
  EXPECT_EQ(text(data.requests[1]), "a cc");
  EXPECT_EQ(data.samples[0].answer, 1U);
  EXPECT_EQ(data.samples[1].answer, 0U);
  EXPECT_EQ(data.samples[1].first_request, 2U);
  EXPECT_EQ(data.ignored, std::set<std::string>{"topic"});
}

TEST_F(EvalSamples, OptionsOfGenerationAreThoseOfTheLine) {
  const EvalData data =
      read(R"({"prompt": "a", "answer": 5, "match": "number", "max_new_tokens": 7, "stop": "\n"}
{"prompt": "a", "answer": ["x", "y"], "temperature": 0.5}
)");
  EXPECT_EQ(data.requests[0].max_new_tokens, 7);
  EXPECT_EQ(data.requests[0].stop.texts, std::vector<std::string>{"\n"});
  EXPECT_EQ(data.requests[0].sampling.top_k, 1);
  EXPECT_EQ(data.requests[1].sampling.top_k, 0);
  EXPECT_TRUE(data.samples[0].match->matches("it is 5.") && data.samples[1].match->matches(" y\n"));
}

TEST_F(EvalSamples, EachLineWithAnErrorIsNamed) {
  const std::vector<std::string> wrong = {
      R"({"text": "of pretraining"})",
      R"({"messages": []})",
      R"([1])",
      R"({"context": "a")",
      R"({"continuation": "a"})",
      R"({"context": 3, "continuation": "a"})",
      R"({"context": "a", "continuation": ""})",
      R"({"context": "a", "continuation": "123456789012345678901"})",
      R"({"context": "a", "choices": ["b"], "answer": 0})",
      R"({"context": "a", "choices": ["b", "c"]})",
      R"({"context": "a", "choices": ["b", "c"], "answer": 2})",
      R"({"context": "a", "choices": ["b", "c"], "answer": "d"})",
      R"({"context": "a", "choices": ["b", ""], "answer": 0})",
      R"({"prompt": "a"})",
      R"({"prompt": "a", "answer": "b", "match": "fuzzy"})",
      R"({"prompt": "a", "answer": "b", "match": "number"})",
      R"({"prompt": "a", "answer": "(", "match": "regex"})",
      R"({"prompt": "a", "answer": "", "match": "prefix"})",
      R"({"prompt": "a", "answer": {}})",
      R"({"prompt": "a", "answer": "b", "top_p": 3})",
  };
  std::string all = "{\"context\": \"a\", \"continuation\": \"b\"}\n";
  for (const std::string& line : wrong) all += line + "\n";
  const std::vector<Problem> found = problems(all);
  ASSERT_EQ(found.size(), wrong.size());
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_TRUE(found[i].where.starts_with(path_ + ":" + std::to_string(i + 2)))
        << found[i].where << wrong[i];
    EXPECT_FALSE(found[i].fix.empty()) << wrong[i];
  }
  EXPECT_EQ(problems("\n").size(), 1U);
}

TEST(AnswerMatch, Numbers) {
  EXPECT_EQ(last_number("a -3 and 1,234.50."), 1234.5);
  EXPECT_EQ(last_number("it is -7"), -7.0);
  EXPECT_EQ(last_number("3-4"), 4.0);
  EXPECT_EQ(last_number("$1,000,"), 1000.0);
  EXPECT_EQ(last_number("none"), std::nullopt);
  const AnswerMatch match(MatchRule::number, {"#### 1,234"}, "file:1");
  EXPECT_TRUE(match.matches("so 12 + 1222 = 1234.0"));
  EXPECT_FALSE(match.matches("1234 or 5"));
  EXPECT_FALSE(match.matches("no"));
}

TEST(AnswerMatch, TextsAndPatterns) {
  const AnswerMatch exact(MatchRule::exact, {"Paris ", "paris"}, ""), prefix(MatchRule::prefix, {"yes"}, ""),
      pattern(MatchRule::regex, {"\\b(two|2)\\b"}, "");
  EXPECT_TRUE(exact.matches("\n Paris\t") && exact.matches("paris"));
  EXPECT_FALSE(exact.matches("Paris."));
  EXPECT_TRUE(prefix.matches("\u00a0yes, it is"));
  EXPECT_FALSE(prefix.matches("oh yes"));
  EXPECT_TRUE(pattern.matches("the 2 of us") && !pattern.matches("the 22 of us"));
  EXPECT_TRUE(pattern.matches("2 \xff"));  // invalid UTF-8
}

}  // namespace
}  // namespace teratron
