#include "teratron/generate/sampling.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>

#include "teratron/base/hash_name.h"
#include "teratron/base/philox.h"
#include "teratron/kernels/sampling/choose_tokens.h"

namespace teratron {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
// Columns of sampling_parameters().
enum SamplingColumn : int64_t { temperature, top_k, top_p, uniform, banned };

at::Tensor column(const at::Tensor& parameters_R5, SamplingColumn index) {
  return parameters_R5.narrow(1, index, 1);
}

at::Tensor keep_top_k(const at::Tensor& logits_RV, const at::Tensor& k_R1, int64_t most) {
  const int64_t vocabulary = logits_RV.size(1);
  const int64_t count = most > largest_top_k ? vocabulary : std::min(most, vocabulary);
  const at::Tensor best = std::get<0>(logits_RV.topk(count, 1));
  const at::Tensor place = k_R1.sub(1).clamp(0, static_cast<double>(count - 1)).to(at::kLong);
  const at::Tensor dropped = logits_RV.lt(best.gather(1, place)).logical_and_(k_R1.gt(0));
  return logits_RV.masked_fill(dropped, minus_infinity);
}

at::Tensor keep_top_p(const at::Tensor& logits_RV, const at::Tensor& p_R1) {
  const auto [sorted, order] = logits_RV.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  const at::Tensor probabilities = sorted.softmax(1);
  const at::Tensor mass_before = probabilities.cumsum(1) - probabilities;
  const at::Tensor dropped = mass_before.gt(p_R1).logical_and_(p_R1.gt(0));
  return at::empty_like(logits_RV).scatter_(1, order, sorted.masked_fill(dropped, minus_infinity));
}

// The first id at which the cumulative probability reaches the random number.
at::Tensor draw_ids(const at::Tensor& filtered_RV, const at::Tensor& uniform_R1) {
  const at::Tensor cumulative = filtered_RV.softmax(1).cumsum(1);
  const int64_t last = cumulative.size(1) - 1;
  return cumulative.lt(uniform_R1 * cumulative.narrow(1, last, 1)).sum(1).clamp_max(last);
}

}  // namespace

double uniform_of(uint64_t seed, uint64_t draw) {
  const PhiloxWords words = philox({seed, hash_name("sampling")}, draw);
  return uniform_from(words.word[0]);
}

SamplingNeeds needs_of(const std::vector<RowSampling>& rows) {
  SamplingNeeds needs;
  for (const RowSampling& row : rows) {
    needs.samples = needs.samples || row.top_k != 1;
    if (row.top_k > 1) needs.top_k = std::max(needs.top_k, row.top_k);
    needs.top_p = needs.top_p || row.top_p > 0.0;
    needs.bans = needs.bans || row.banned >= 0;
  }
  // Few values, since each is a CUDA graph.
  if (needs.top_k > 0 && needs.top_k <= largest_top_k) needs.top_k = needs.top_k <= 64 ? 64 : largest_top_k;
  return needs;
}

at::Tensor sampling_parameters(const std::vector<RowSampling>& rows) {
  const at::Tensor all = at::empty({static_cast<int64_t>(rows.size()), 5}, at::kDouble);
  auto* out = all.mutable_data_ptr<double>();
  for (const RowSampling& row : rows) {
    *out++ = row.temperature;
    *out++ = static_cast<double>(row.top_k);
    *out++ = row.top_p;
    *out++ = row.uniform;
    *out++ = static_cast<double>(row.banned);
  }
  return all;
}

at::Tensor filtered_logits(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                           const SamplingNeeds& needs) {
  at::Tensor filtered = logits_RV.to(at::kDouble) / column(parameters_R5, temperature);
  if (needs.top_k > 0) filtered = keep_top_k(filtered, column(parameters_R5, top_k), needs.top_k);
  if (needs.top_p) filtered = keep_top_p(filtered, column(parameters_R5, top_p));
  return filtered;
}

namespace {

// f64 [R, 2 * top]: pairs of id and log probability.
at::Tensor top_tokens(const at::Tensor& logprobs_RV, int64_t top) {
  const auto [best, ids] = logprobs_RV.topk(std::min(top, logprobs_RV.size(1)), 1);
  return at::stack({ids.to(at::kDouble), best}, 2).flatten(1);
}

// Banned tokens as low as Megatron-LM's: the log probabilities show it.
at::Tensor without_banned(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                          const SamplingNeeds& needs) {
  if (!needs.bans) return logits_RV;
  const at::Tensor ids = at::arange(logits_RV.size(1), parameters_R5.options());
  return logits_RV.to(at::kFloat).masked_fill(ids.unsqueeze(0).eq(column(parameters_R5, banned)), -1e10);
}

}  // namespace

at::Tensor with_top_tokens(const at::Tensor& ids_R, const at::Tensor& logprobs_RV, int64_t top) {
  const at::Tensor ids_R1 = ids_R.unsqueeze(1);
  std::vector<at::Tensor> columns = {ids_R1.to(at::kDouble), logprobs_RV.gather(1, ids_R1)};
  if (top > 0) columns.push_back(top_tokens(logprobs_RV, top));
  return at::cat(columns, 1);
}

at::Tensor sample_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                       const SamplingNeeds& needs) {
  if (logits_RV.is_cuda() && logits_RV.scalar_type() != at::kDouble) {
    const at::Tensor chosen_2R = choose_tokens(
        logits_RV, parameters_R5.contiguous(),
        {.samples = needs.samples, .filters = needs.top_k > 0 || needs.top_p, .logprobs = needs.logprobs});
    if (needs.top == 0) return chosen_2R;
    // All from one sum, so that a token has the same log probability as the chosen and as one of the best.
    const at::Tensor logits = without_banned(logits_RV, parameters_R5, needs);
    return with_top_tokens(chosen_2R[0].to(at::kLong), logits.to(at::kDouble).log_softmax(1), needs.top).t();
  }
  const at::Tensor logits = without_banned(logits_RV, parameters_R5, needs);
  at::Tensor ids = logits.argmax(1);
  if (needs.samples) {
    const at::Tensor k_R1 = column(parameters_R5, top_k);
    const at::Tensor filtered = filtered_logits(logits, parameters_R5, needs);
    ids = at::where(k_R1.squeeze(1).eq(1), ids, draw_ids(filtered, column(parameters_R5, uniform)));
  }
  const at::Tensor chosen = ids.to(at::kDouble);
  if (!needs.logprobs) return at::stack({chosen, at::zeros_like(chosen)});
  return with_top_tokens(ids, logits.to(at::kDouble).log_softmax(1), needs.top).t();
}

int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw) {
  const std::vector<RowSampling> rows = {{.temperature = options.temperature,
                                          .top_k = options.top_k,
                                          .top_p = options.top_p,
                                          .uniform = uniform_of(options.seed, draw)}};
  const at::Tensor parameters = sampling_parameters(rows).to(logits_V.device());
  return static_cast<int64_t>(
      sample_rows(logits_V.unsqueeze(0), parameters, needs_of(rows))[0].item<double>());
}

}  // namespace teratron
