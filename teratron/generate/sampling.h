// Choosing the next token.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/base/error.h"

namespace teratron {

struct SamplingOptions {
  double temperature = 1.0;
  int64_t top_k = 0;         // sample from the k most probable tokens; 0: all, 1: greedy
  double top_p = 0.0;        // sample from the most probable tokens of this mass; 0: all
  double top_p_decay = 0.0;  // factor of top_p after each new token; 0: none
  double top_p_bound = 0.0;  // its lower bound; 0: none
  uint64_t seed = 1234;
};

/// Values out of range, and both top_k and top_p (as Megatron-LM's server).
std::vector<Problem> sampling_problems(const SamplingOptions& options);
/// UserError(config) for any.
void check_sampling(const SamplingOptions& options);

/// top_p for the next token, from the one before.
double decayed_top_p(double top_p, const SamplingOptions& options);

/// How one row of logits is used.
struct RowSampling {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 0.0;
  double uniform = 0.0;  // in (0, 1]
  int64_t banned = -1;   // a token that is not chosen; -1: none
};
/// The random number of draw `draw` of a seed: the same on every rank and in every batch.
double uniform_of(uint64_t seed, uint64_t draw);

/// What a batch of rows needs computed. Rows give the same ids under any superset of their needs.
struct SamplingNeeds {
  bool samples = false;  // not all rows are greedy
  int64_t top_k = 0;     // at least the largest top_k; 0: none. More than largest_top_k sorts all tokens
  bool top_p = false;
  bool bans = false;
  bool logprobs = false;
  bool operator==(const SamplingNeeds&) const = default;
  auto operator<=>(const SamplingNeeds&) const = default;
};
inline constexpr int64_t largest_top_k = 1024;
SamplingNeeds needs_of(const std::vector<RowSampling>& rows);

/// f64 [R, 5], as sample_rows() reads them.
at::Tensor sampling_parameters(const std::vector<RowSampling>& rows);

/// f64 [R, V]: logits divided by the temperature, with those that are not sampled from at -inf.
at::Tensor filtered_logits(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                           const SamplingNeeds& needs);

/// f64 [2, R] on the logits' device: ids, and with needs.logprobs the log probabilities of the unscaled and
/// unfiltered logits. Logits [R, V] are divided by the temperature, then filtered by top-k or top-p: a token
/// is dropped if the mass of the more probable ones already exceeds p, so the most probable one always stays;
/// those that tie with the k-th stay. Never waits for the device.
at::Tensor sample_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                       const SamplingNeeds& needs);

/// One id for logits [V], by draw `draw` of the seed.
int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw);

}  // namespace teratron
