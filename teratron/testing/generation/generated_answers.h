// Answers of a model, on one rank or spread over several.
#pragma once

#include <utility>

#include "teratron/generate/ranked_engine.h"

namespace teratron {

/// On one rank, with random weights.
struct OwnModel {
  explicit OwnModel(const ModelPlan& plan, at::Device device = at::kCPU, at::ScalarType dtype = at::kDouble)
      : parameters({.dtype = dtype, .device = device, .seed = 9}),
        model(language_model(plan, parameters, {})) {}
  ParameterSet parameters;
  LanguageModel model;
};

/// The choices of each request.
using Answers = std::vector<std::vector<GeneratedChoice>>;

/// On one rank.
inline Answers answers_of(const LanguageModel& model, const std::vector<GenerationRequest>& requests,
                          const EngineSettings& settings) {
  SingleHostGroup ranks;
  Engine engine(model, settings, ranks);
  for (const GenerationRequest& request : requests) engine.submit(request);
  while (engine.step()) {
  }
  Answers answers(requests.size());
  for (GenerationResult& result : engine.take_results()) answers.at(result.id) = std::move(result.choices);
  return answers;
}

/// Rank 0: the results of all requests, by default with at most five rows at once; others: none. Collective.
inline std::vector<GenerationResult> ranked_answers(const LanguageModel& model, const Mesh& mesh,
                                                    const std::vector<GenerationRequest>& requests,
                                                    const EngineSettings& settings = {.max_rows = 5}) {
  HostGroup& ranks = *mesh.world().communicator;
  Engine local(model, settings, ranks);
  RankedEngine engine(local, ranks);
  if (mesh.rank() != 0) {
    engine.follow();
    return {};
  }
  for (const GenerationRequest& request : requests) engine.submit(request);
  while (engine.step()) {
  }
  std::vector<GenerationResult> results = engine.take_results();
  engine.stop();
  return results;
}

}  // namespace teratron
