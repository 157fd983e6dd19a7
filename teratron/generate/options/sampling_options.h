// How the next token is chosen.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// Below this temperature the most probable token is chosen, as in vLLM: dividing logits would overflow.
inline constexpr double least_temperature = 1e-5;

struct SamplingOptions {
  double temperature = 1.0;
  int64_t top_k = 0;         // sample from the k most probable tokens; 0: all, 1: greedy
  double top_p = 0.0;        // sample from the most probable tokens of this mass; 0: all
  double top_p_decay = 0.0;  // factor of top_p after each new token; 0: none
  double top_p_bound = 0.0;  // its lower bound; 0: none
  uint64_t seed = 1234;
  bool joins_filters = false;      // top_k and top_p may both be set: top_k comes first
  double min_p = 0.0;              // sample from tokens of this part of the largest probability; 0: all
  double presence_penalty = 0.0;   // taken from the logits of tokens of the answer
  double frequency_penalty = 0.0;  // likewise, for each time that they are in it
  double repetition_penalty =
      1.0;  // divides positive logits of tokens of prompt and answer, multiplies others
  std::vector<std::pair<int32_t, double>> logit_bias = {};  // added to the logits of these tokens
};

/// Values out of range, and both top_k and top_p (as Megatron-LM's server).
std::vector<Problem> sampling_problems(const SamplingOptions& options);
/// UserError(config) for any.
void check_sampling(const SamplingOptions& options);

/// top_p for the next token, from the one before.
double decayed_top_p(double top_p, const SamplingOptions& options);

}  // namespace teratron
