// Requests to a language model, shared by the replicas of a job: each has the whole model on its ranks
// (generate/model_ranks.h), and an engine (generate/engine.h) that batches its requests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/generate/engine.h"
#include "teratron/generate/model_ranks.h"

namespace teratron {

struct ReplicatedModel {
  const Mesh& mesh;
  const LanguageModel& model;  // this rank's part of its replica
  EngineSettings settings = {};

  ModelRanks ranks() const { return ModelRanks(mesh); }
};

/// Requests by number, the same on all ranks.
struct RequestList {
  int64_t size = 0;
  std::function<GenerationRequest(int64_t)> get;
};

/// What came of a request.
struct RequestOutcome {
  // If the request has logprobs: about the prompt's tokens from logprobs_from on. most_probable needs
  // top_logprobs.
  double log_likelihood = 0.0;
  int64_t tokens = 0;
  bool most_probable = true;  // each of these tokens is the most probable one at its place
  std::string text;           // of the first answer, if the engine has a tokenizer
};

/// Request i is answered by replica i % replicas. `on_progress`, unless null, is called on each replica's
/// first rank with the number of its requests that are answered. Returns all outcomes on every rank. Requests
/// must be valid (Engine::problems_of). Collective.
std::vector<RequestOutcome> answer_requests(const ReplicatedModel& model, const RequestList& requests,
                                            const std::function<void(int64_t)>& on_progress = nullptr);

}  // namespace teratron
