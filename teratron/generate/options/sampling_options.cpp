#include "teratron/generate/options/sampling_options.h"

#include <algorithm>

namespace teratron {

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
  check(options.joins_filters || options.top_k <= 0 || options.top_p <= 0.0,
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
  check(options.min_p >= 0.0 && options.min_p <= 1.0,
        fmt::format("min_p = {} is not in [0, 1]", options.min_p), "min_p", "Use 0 for all tokens");
  for (const auto& [name, value] : {std::pair{"presence_penalty", options.presence_penalty},
                                    std::pair{"frequency_penalty", options.frequency_penalty}})
    check(value >= -2.0 && value <= 2.0, fmt::format("{} = {} is not in [-2, 2]", name, value), name,
          "Use 0 for none");
  check(options.repetition_penalty > 0.0 && options.repetition_penalty <= 100.0,
        fmt::format("repetition_penalty = {} is not in (0, 100]", options.repetition_penalty),
        "repetition_penalty", "Use 1 for none, or more");
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

}  // namespace teratron
