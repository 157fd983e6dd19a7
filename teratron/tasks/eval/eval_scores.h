// Figures of an evaluation, those of lm-evaluation-harness where it has them:
//
//   accuracy          share of right choices by log likelihood; accuracy_norm: per character of the choice;
//                     accuracy_bytes: per byte of it. Without choices: greedy
//   greedy            share of continuations that greedy decoding gives
//   exact_match       share of generated texts that match
//   log_likelihood    mean over the continuations; perplexity = exp(-log_likelihood)
//   token_perplexity  exp(-sum of log likelihoods / number of their tokens)
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tasks/eval/eval_samples.h"
#include "teratron/tasks/replicas.h"

namespace teratron {

struct SampleScore {
  std::map<std::string, double> values;  // those that have a mean
  int64_t tokens = 0;                    // of a continuation
  nlohmann::ordered_json line;           // of --predictions
};

SampleScore score_of(const EvalSample& sample, const std::vector<RequestOutcome>& outcomes);

/// accuracy, ..., samples, and stderr: an object with the standard error of each figure, the standard
/// deviation over 1,000 resamples of the samples, drawn with replacement from `seed`.
nlohmann::ordered_json figures_of(const std::vector<SampleScore>& scores, uint64_t seed);

}  // namespace teratron
