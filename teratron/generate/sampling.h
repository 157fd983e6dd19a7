// Choosing the next token.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/generate/options/sampling_options.h"

namespace teratron {

/// How one row of logits is used.
struct RowSampling {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 0.0;
  double uniform = 0.0;  // in (0, 1]
  int64_t banned = -1;   // a token that is not chosen; -1: none
  bool operator==(const RowSampling&) const = default;
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
  int64_t top = 0;  // so many of the most probable tokens with their log probabilities; needs logprobs
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

/// f64 [2 + 2 * top, R] on the logits' device: ids, and with needs.logprobs the log probabilities of the
/// unscaled and unfiltered logits; then the same of the most probable tokens. Logits [R, V] are divided by
/// the temperature, then filtered by top-k or top-p. Tokens that tie with the k-th stay. Top-p drops a token
/// if the mass of the more probable ones already exceeds p, so the most probable one always stays. Never
/// waits for the device.
at::Tensor sample_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                       const SamplingNeeds& needs);

/// f64 [R, 2 + 2 * top]: id and log probability of given tokens, then of the most probable ones.
at::Tensor with_top_tokens(const at::Tensor& ids_R, const at::Tensor& logprobs_RV, int64_t top);

/// One id for logits [V], by draw `draw` of the seed.
int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw);

}  // namespace teratron
