#include "teratron/serve/api/token_logprobs.h"

#include <cmath>

#include <gtest/gtest.h>

#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

// The engine's two values of one token may differ in the last bit.
TEST(TokenLogprobs, ATokenHasOneValue) {
  const auto tokenizer = build_tokenizer({.type = "NullTokenizer", .vocab_size = 100});
  const double value = -1.25, nearly = std::nextafter(value, 0.0);
  const GeneratedToken token{.id = 7, .logprob = value, .top = {{7, nearly}, {9, -2.0}}, .finish_reason = {}};

  TokenLogprobs completion(*tokenizer, false, -1);
  completion.add(token);
  const auto flat = completion.take();
  EXPECT_EQ(flat["tokens"][0], "7");
  EXPECT_EQ(flat["token_logprobs"][0], value);
  EXPECT_EQ(flat["top_logprobs"][0].size(), 2U);
  EXPECT_EQ(flat["top_logprobs"][0]["7"], value);
  EXPECT_EQ(flat["top_logprobs"][0]["9"], -2.0);

  TokenLogprobs chat(*tokenizer, true, -1);
  chat.add(token);
  const auto entry = chat.take()["content"][0];
  EXPECT_EQ(entry["logprob"], value);
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], value);
}

}  // namespace
}  // namespace teratron
