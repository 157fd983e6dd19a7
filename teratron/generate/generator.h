// Autoregressive generation with a key/value cache.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "teratron/generate/sampling.h"
#include "teratron/models/model_plan.h"

namespace teratron {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 64;
  int64_t end_token = -1;  // generation stops after it; -1: never
  uint64_t sequence = 0;   // makes texts of one seed differ
  /// Called with each new token; may be empty.
  std::function<void(int32_t)> on_token;
};

/// A whole model on the ranks of one tensor-parallel group.
struct LanguageModel {
  std::unique_ptr<Model> model;
  int64_t layers = 0;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;
  Inference inference = {};
  Group tensor_parallel = {};
  at::Device device = at::kCPU;
};
/// Its parameters are created in `parameters`.
LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel);

/// Logits [S, 1, vocabulary], without padding, of token ids at positions `first`, first + 1, ..., on every
/// rank. `states`: of the tokens before them, extended; null: there are none.
at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids, int64_t first = 0,
                     LayerStates* states = nullptr);

/// The outputs of a micro-batch in fp32 on the CPU of every rank: [B, ...], logits [B, S, vocabulary] without
/// padding.
std::vector<InferenceOutput> outputs_of(const LanguageModel& model, const MicroBatch& batch);

/// The ids that follow `prompt` (not empty), including the end token. Stops at the model's last position;
/// UserError(config) if the prompt alone fills all positions.
std::vector<int32_t> generate(const LanguageModel& model, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options);

}  // namespace teratron
