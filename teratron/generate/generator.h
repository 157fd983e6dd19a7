// Text, token by token, with cached keys and values.
#pragma once

#include <functional>
#include <vector>

#include "teratron/generate/sampling.h"
#include "teratron/models/gpt/gpt.h"

namespace teratron {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 64;
  int64_t end_token = -1;  // generation ends after it; -1: never
  uint64_t stream = 0;     // makes texts of one seed differ
  /// Called with each new token as it is chosen; may be empty.
  std::function<void(int32_t)> on_token;
};

/// Logits of all columns on every tensor-parallel rank, without the padding: [S, B, vocabulary].
at::Tensor whole_logits(GPT& model, const Activations& output);

/// The ids that follow `prompt` (not empty), the end token included. Ends early where the model's positions do.
/// UserError(config) when the prompt alone fills them.
std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options);

}  // namespace teratron
