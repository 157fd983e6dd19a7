#include "teratron/generate/beam_search.h"

#include <algorithm>
#include <cmath>

namespace teratron {

void BeamHypotheses::add(std::vector<int32_t> tokens, double sum_logprobs, int64_t length,
                         const char* finish_reason) {
  const double score = sum_logprobs / std::pow(static_cast<double>(length), length_penalty_);
  if (static_cast<int64_t>(hypotheses_.size()) >= width_ && score <= worst_) return;
  hypotheses_.push_back({score, std::move(tokens), finish_reason});
  const auto by_score = [](const Hypothesis& a, const Hypothesis& b) { return a.score < b.score; };
  if (static_cast<int64_t>(hypotheses_.size()) > width_)
    hypotheses_.erase(std::min_element(hypotheses_.begin(), hypotheses_.end(), by_score));
  worst_ = std::min_element(hypotheses_.begin(), hypotheses_.end(), by_score)->score;
}

bool BeamHypotheses::is_done(double best_sum_logprobs, int64_t length) const {
  if (static_cast<int64_t>(hypotheses_.size()) < width_) return false;
  return worst_ >= best_sum_logprobs / std::pow(static_cast<double>(length), length_penalty_);
}

std::vector<BeamHypotheses::Hypothesis> BeamHypotheses::sorted() const {
  std::vector<Hypothesis> sorted = hypotheses_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
  return sorted;
}

void keep_best(std::vector<BeamCandidate>& candidates, int64_t count) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const BeamCandidate& a, const BeamCandidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  if (static_cast<int64_t>(candidates.size()) > count) candidates.resize(count);
}

std::vector<BeamCandidate> next_beams(const std::vector<BeamCandidate>& candidates, int64_t width,
                                      int64_t length, const EndedBeam& ended, BeamHypotheses& finished) {
  std::vector<BeamCandidate> next;
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    const BeamCandidate& candidate = candidates[rank];
    if (std::optional<std::vector<int32_t>> tokens = ended(candidate)) {
      // Worse than `width` others: it is dropped.
      if (static_cast<int64_t>(rank) < width)
        finished.add(std::move(*tokens), candidate.score, length, "stop");
      continue;
    }
    next.push_back(candidate);
    if (static_cast<int64_t>(next.size()) == width) break;
  }
  return next;
}

}  // namespace teratron
