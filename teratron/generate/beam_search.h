// Beam search as Megatron-LM's: the score of a hypothesis is the sum of its log probabilities divided by
// length^penalty.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "teratron/generate/request.h"

namespace teratron {

/// The best `width` finished hypotheses.
class BeamHypotheses {
 public:
  struct Hypothesis {
    double score;
    std::vector<int32_t> tokens;
    const char* finish_reason;
  };
  BeamHypotheses(int64_t width, double length_penalty) : width_(width), length_penalty_(length_penalty) {}
  /// `length`: of the score.
  void add(std::vector<int32_t> tokens, double sum_logprobs, int64_t length, const char* finish_reason);
  /// Whether no open beam can become better than the worst, if the best open sum is this.
  bool is_done(double best_sum_logprobs, int64_t length) const;
  double worst() const { return worst_; }
  const std::vector<Hypothesis>& all() const { return hypotheses_; }
  /// The best first.
  std::vector<Hypothesis> sorted() const;

 private:
  int64_t width_;
  double length_penalty_;
  double worst_ = 1e9;
  std::vector<Hypothesis> hypotheses_;
};

/// A continuation of a beam.
struct BeamCandidate {
  double score = 0.0;  // sum of log probabilities
  int64_t beam = 0;
  int32_t token = 0;
};

/// The new tokens of the hypothesis that a candidate ends; nullopt if it ends none.
using EndedBeam = std::function<std::optional<std::vector<int32_t>>(const BeamCandidate& candidate)>;

/// One step: `candidates` are the best 2 width continuations of all beams, `length` their new tokens. Adds
/// hypotheses that end to `finished`; returns the next beams, at most `width`.
std::vector<BeamCandidate> next_beams(const std::vector<BeamCandidate>& candidates, int64_t width,
                                      int64_t length, const EndedBeam& ended, BeamHypotheses& finished);

/// The best `count`, best first; of equal scores the first beam and token.
void keep_best(std::vector<BeamCandidate>& candidates, int64_t count);

}  // namespace teratron
