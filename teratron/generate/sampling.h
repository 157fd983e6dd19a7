// Sampling of the next token.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace teratron {

struct SamplingOptions {
  double temperature = 1.0;
  int64_t top_k = 0;   // sample from the k most probable tokens; 0: all, 1: greedy
  double top_p = 0.0;  // sample from the most probable tokens of this mass; 0: all
  uint64_t seed = 1234;
};

/// UserError(config) for values out of range, and for both top_k and top_p (as Megatron-LM's server).
void check_sampling(const SamplingOptions& options);

/// One id for logits [V]. Logits are divided by the temperature, then filtered by top-k or top-p: a token is
/// dropped if the mass of the more probable ones already exceeds p, so the most probable one always stays.
/// `draw` is the counter of the random generator: the same seed and draw give the same id in every run and on
/// every rank.
int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw);

}  // namespace teratron
