// Choosing the next token.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace teratron {

struct SamplingOptions {
  double temperature = 1.0;
  int64_t top_k = 0;   // draw among the k best; 0: all, 1: greedy
  double top_p = 0.0;  // draw among the best tokens of this probability mass; 0: all
  uint64_t seed = 1234;
};

/// UserError(config) for values out of range, and for top_k and top_p together (as Megatron-LM's server).
void check(const SamplingOptions& options);

/// One id for logits [V]. Logits are divided by the temperature, then cut by top-k or top-p: a token is left out
/// when the mass of the better ones already exceeds p, so the best one always stays. `draw` numbers the choice:
/// with the same seed it is the same in every run and on every rank.
int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw);

}  // namespace teratron
