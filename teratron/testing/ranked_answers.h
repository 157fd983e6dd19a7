// Answers of a model that is spread over ranks.
#pragma once

#include "teratron/generate/ranked_engine.h"

namespace teratron {

/// Rank 0: the results of all requests, with at most five rows at once; others: none. Collective.
inline std::vector<GenerationResult> ranked_answers(const LanguageModel& model, const Mesh& mesh,
                                                    const std::vector<GenerationRequest>& requests) {
  HostGroup& ranks = *mesh.world().communicator;
  Engine local(model, {.max_rows = 5}, ranks);
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
