// How the next token is chosen.
#pragma once

#include <cstdint>
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
};

/// Values out of range, and both top_k and top_p (as Megatron-LM's server).
std::vector<Problem> sampling_problems(const SamplingOptions& options);
/// UserError(config) for any.
void check_sampling(const SamplingOptions& options);

/// top_p for the next token, from the one before.
double decayed_top_p(double top_p, const SamplingOptions& options);

}  // namespace teratron
