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

std::vector<Problem> sampling_problems(const SamplingOptions& options) {
  std::vector<Problem> problems;
  const auto check = [&](bool valid, std::string what, const char* where, const char* fix) {
    if (!valid) problems.push_back({.what = std::move(what), .where = where, .fix = fix});
  };
  check(options.temperature > 0.0 && options.temperature <= 100.0,
        fmt::format("temperature = {} is not in (0, 100]", options.temperature), "--temperature",
        "Use 1.0, less for more probable texts, or --greedy");
  check(options.top_k >= 0, fmt::format("top_k = {} is below 0", options.top_k), "--top-k",
        "Use 0 for all tokens");
  check(options.top_p >= 0.0 && options.top_p <= 1.0,
        fmt::format("top_p = {} is not in [0, 1]", options.top_p), "--top-p", "Use 0 for all tokens");
  check(options.top_k <= 0 || options.top_p <= 0.0,
        fmt::format("--top-k {} and --top-p {} exclude each other", options.top_k, options.top_p), "--top-p",
        "Set only one of them");
  check(options.top_p_decay >= 0.0 && options.top_p_decay <= 1.0,
        fmt::format("top_p_decay = {} is not in [0, 1]", options.top_p_decay), "--top-p-decay",
        "Use 0 for none");
  check(options.top_p_bound >= 0.0 && options.top_p_bound <= std::max(options.top_p, 0.0),
        fmt::format("top_p_bound = {} is not in [0, top_p = {}]", options.top_p_bound, options.top_p),
        "--top-p-bound", "Use less than top_p, or 0 for none");
  check(options.top_p_decay == 0.0 || options.top_p > 0.0, "top_p_decay is set without top_p",
        "--top-p-decay", "Set --top-p too");
  return problems;
}

void check_sampling(const SamplingOptions& options) {
  std::vector<Problem> problems = sampling_problems(options);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

double decayed_top_p(double top_p, const SamplingOptions& options) {
  if (options.top_p_decay == 0.0) return top_p;
  return std::max(top_p * options.top_p_decay, options.top_p_bound);
}

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

at::Tensor sample_rows(const at::Tensor& logits_RV, const at::Tensor& parameters_R5,
                       const SamplingNeeds& needs) {
  const bool filters = needs.top_k > 0 || needs.top_p;
  if (logits_RV.is_cuda() && logits_RV.scalar_type() != at::kDouble && !filters) {
    return choose_tokens(logits_RV, parameters_R5.contiguous(),
                         {.samples = needs.samples, .logprobs = needs.logprobs});
  }
  at::Tensor logits = logits_RV;
  if (needs.bans) {  // as low as Megatron-LM's: the log probabilities show it
    const at::Tensor ids = at::arange(logits.size(1), parameters_R5.options());
    logits = logits.to(at::kFloat).masked_fill(ids.unsqueeze(0).eq(column(parameters_R5, banned)), -1e10);
  }
  at::Tensor ids = logits.argmax(1);
  if (needs.samples) {
    const at::Tensor k_R1 = column(parameters_R5, top_k);
    const at::Tensor filtered = filtered_logits(logits, parameters_R5, needs);
    ids = at::where(k_R1.squeeze(1).eq(1), ids, draw_ids(filtered, column(parameters_R5, uniform)));
  }
  const at::Tensor chosen = ids.to(at::kDouble);
  if (!needs.logprobs) return at::stack({chosen, at::zeros_like(chosen)});
  const at::Tensor logprobs = logits.to(at::kDouble).log_softmax(1).gather(1, ids.unsqueeze(1)).squeeze(1);
  return at::stack({chosen, logprobs});
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
