// Random requests for letter_tokenizer.h, and the comparison of their answers.
#pragma once

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/generate/request.h"

namespace teratron {

// Prompts that are only scored among them, searches with fewer answers than beams, and all ways to stop.
inline std::vector<GenerationRequest> random_requests(std::mt19937& random, int64_t count) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests.emplace_back();
    for (int64_t n = 1 + below(20); n > 0; --n) request.prompt.push_back(static_cast<int32_t>(below(37)));
    request.max_new_tokens = 1 + below(25);
    request.sampling = {.temperature = 0.5 + 0.1 * static_cast<double>(below(10)), .seed = random()};
    request.logprobs = below(2) == 0;
    if (below(4) == 0) request.stop.texts = {"b", std::string(1, static_cast<char>('a' + below(26))) + "c"};
    if (below(8) == 0) request.stop.on_eol = true;
    if (below(8) == 0) request.max_new_tokens = 0, request.logprobs = true;
    switch (below(5)) {
      case 0:
        request.sampling.top_k = 1 + below(6);
        break;
      case 1:
        request.sampling.top_p = 0.9;
        request.sampling.top_p_decay = 0.8;
        request.sampling.top_p_bound = 0.1;
        break;
      case 2:
        request.sampling.temperature = 1.0;
        request.beams = {.width = 2 + below(3), .length_penalty = 1.0};
        request.choices = 1 + below(request.beams.width);
        request.stop.tokens = {static_cast<int32_t>(below(37))};
        break;
      case 3:
        request.choices = 1 + below(3);
        break;
      default:
        request.stop.tokens = {static_cast<int32_t>(below(37))};
    }
  }
  return requests;
}

inline void expect_same(const std::vector<GeneratedChoice>& actual,
                        const std::vector<GeneratedChoice>& expected, int64_t request) {
  ASSERT_EQ(actual.size(), expected.size()) << request;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].tokens, expected[i].tokens) << request;
    EXPECT_EQ(actual[i].finish_reason, expected[i].finish_reason);
    ASSERT_EQ(actual[i].logprobs.size(), expected[i].logprobs.size());
    for (size_t t = 0; t < actual[i].logprobs.size(); ++t)
      EXPECT_NEAR(actual[i].logprobs[t], expected[i].logprobs[t], 1e-9);
    EXPECT_NEAR(actual[i].score, expected[i].score, 1e-9);
  }
}

}  // namespace teratron
