// Autoregressive generation with a key/value cache.
#pragma once

#include <functional>
#include <vector>

#include "teratron/generate/sampling.h"
#include "teratron/models/gpt/gpt.h"

namespace teratron {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 64;
  int64_t end_token = -1;  // generation stops after it; -1: never
  uint64_t sequence = 0;   // makes texts of one seed differ
  /// Called with each new token; may be empty.
  std::function<void(int32_t)> on_token;
};

/// Logits of the whole vocabulary on every tensor-parallel rank, without padding: [S, B, vocabulary].
at::Tensor gather_logits(GPT& model, const Activations& output);

/// The ids that follow `prompt` (not empty), including the end token. Stops at the model's last position;
/// UserError(config) if the prompt alone fills all positions.
std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options);

}  // namespace teratron
