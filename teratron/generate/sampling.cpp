#include "teratron/generate/sampling.h"

#include <limits>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/hash_name.h"
#include "teratron/base/philox.h"

namespace teratron {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  const at::Tensor best = std::get<0>(logits.topk(std::min(k, logits.size(0))));
  return logits.masked_fill(logits < best[-1], minus_infinity);
}

at::Tensor keep_top_p(const at::Tensor& logits, double p) {
  const auto [sorted, order] = logits.sort(/*dim=*/0, /*descending=*/true);
  const at::Tensor probabilities = sorted.softmax(0);
  const at::Tensor mass_before = probabilities.cumsum(0) - probabilities;
  const at::Tensor filtered = sorted.masked_fill(mass_before > p, minus_infinity);
  return at::empty_like(logits).scatter_(0, order, filtered);
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  std::vector<Problem> problems;
  if (options.temperature <= 0.0 || options.temperature > 100.0) {
    problems.push_back({.what = fmt::format("temperature = {} is not in (0, 100]", options.temperature),
                        .where = "--temperature",
                        .fix = "Use 1.0, less for more probable texts, or --greedy"});
  }
  if (options.top_k > 0 && options.top_p > 0.0) {
    problems.push_back(
        {.what = fmt::format("--top-k {} and --top-p {} exclude each other", options.top_k, options.top_p),
         .where = "--top-p",
         .fix = "Set only one of them"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, uint64_t draw) {
  if (options.top_k == 1) return logits_V.argmax().item<int64_t>();
  at::Tensor logits = logits_V.to(at::kCPU, at::kDouble) / options.temperature;
  if (options.top_k > 0) logits = keep_top_k(logits, options.top_k);
  if (options.top_p > 0.0) logits = keep_top_p(logits, options.top_p);
  const at::Tensor cumulative = logits.softmax(0).cumsum(0);
  const PhiloxWords words = philox({options.seed, hash_name("sampling")}, draw);
  const double uniform = uniform_from(words.word[0]) * cumulative[-1].item<double>();
  const int64_t index = cumulative.lt(uniform).sum().item<int64_t>();
  return std::min(index, logits.size(0) - 1);
}

}  // namespace teratron
