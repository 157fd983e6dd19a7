// Built with -ffp-contract=off: a fused multiply-add would change the last bit.
#include "teratron/optim/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr std::array<std::string_view, 5> lr_styles = {"constant", "linear", "cosine", "inverse-square-root",
                                                       "WSD"};
constexpr std::array<std::string_view, 4> wsd_styles = {"linear", "cosine", "exponential", "minus_sqrt"};
constexpr std::array<std::string_view, 3> weight_decay_styles = {"constant", "linear", "cosine"};

template <typename Style, size_t N>
std::optional<Style> style_from(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Style>(found - names.begin());
}

double half_cosine(double x) {
  return 0.5 * (std::cos(std::numbers::pi * x) + 1.0);
}

double wsd_coefficient(const LrScheduleOptions& options, double n) {
  const double anneal_start = options.decay_steps - options.wsd_decay_steps;
  if (n <= anneal_start) return 1.0;
  const double q = (n - anneal_start) / options.wsd_decay_steps;
  switch (options.wsd_decay_style) {
    case WsdDecayStyle::linear:
      return 1.0 - q;
    case WsdDecayStyle::cosine:
      return half_cosine(q);
    case WsdDecayStyle::exponential:
      return 2.0 * std::pow(0.5, q) - 1.0;
    case WsdDecayStyle::minus_sqrt:
      return 1.0 - std::sqrt(q);
  }
  return 1.0;
}

std::vector<Problem> contradictions(const LrScheduleOptions& o) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, std::string what, std::string where, std::string fix) {
    if (!holds) problems.push_back({std::move(what), std::move(where), std::move(fix)});
  };
  require(o.min_lr >= 0.0, fmt::format("min-lr = {} is negative", o.min_lr), "--min-lr", "use 0 or more");
  require(o.max_lr >= o.min_lr, fmt::format("lr = {} is below min-lr = {}", o.max_lr, o.min_lr), "--lr",
          "raise --lr or lower --min-lr");
  require(o.init_lr <= o.max_lr, fmt::format("lr-warmup-init = {} is above lr = {}", o.init_lr, o.max_lr),
          "--lr-warmup-init", "start the warm-up at or below --lr");
  require(o.decay_steps > 0.0, fmt::format("the learning rate decays over {} samples", o.decay_steps),
          "--lr-decay-iters", "use a positive length, or a positive --train-iters");
  require(
      o.warmup_steps >= 0.0 && o.warmup_steps < o.decay_steps,
      fmt::format("the warm-up takes {} samples but the decay ends after {}", o.warmup_steps, o.decay_steps),
      "--lr-warmup-iters", "make the warm-up shorter than the decay");
  if (o.decay_style == LrDecayStyle::wsd) {
    require(o.wsd_decay_steps > 0.0 && o.wsd_decay_steps <= o.decay_steps,
            fmt::format("the WSD decay takes {} of {} samples", o.wsd_decay_steps, o.decay_steps),
            "--lr-wsd-decay-iters", "use a positive length within the decay");
    // Up to a fractional warm-up.
    require(o.warmup_steps >= o.decay_steps || o.warmup_steps + o.wsd_decay_steps < o.decay_steps + 1.0,
            fmt::format("the WSD decay takes {} samples, but after a warm-up of {} only {} are left",
                        o.wsd_decay_steps, o.warmup_steps, o.decay_steps - o.warmup_steps),
            "--lr-wsd-decay-iters", "shorten one of the two, or the learning rate falls at once");
  }
  require(o.start_weight_decay >= 0.0,
          fmt::format("start-weight-decay = {} is negative", o.start_weight_decay), "--start-weight-decay",
          "use 0 or more");
  require(o.end_weight_decay >= o.start_weight_decay,
          fmt::format("end-weight-decay = {} is below start-weight-decay = {}", o.end_weight_decay,
                      o.start_weight_decay),
          "--end-weight-decay", "weight decay may only grow");
  require(o.weight_decay_style != WeightDecayStyle::constant || o.start_weight_decay == o.end_weight_decay,
          fmt::format("weight decay is constant but changes from {} to {}", o.start_weight_decay,
                      o.end_weight_decay),
          "--weight-decay-incr-style", "choose linear or cosine, or equal ends");
  return problems;
}

[[noreturn]] void mixed_units(std::string_view samples_flag, std::string_view fix) {
  throw config_error(
      {.what = fmt::format("{} does not match the unit of the training length, iterations or samples",
                           samples_flag),
       .where = std::string(samples_flag),
       .fix = std::string(fix)});
}

/// Reads checkpoint keys and collects differences from the flags.
class StateReader {
 public:
  StateReader(const nlohmann::json& state, ScheduleLoadRule rule) : state_(state), rule_(rule) {}

  /// `has_effect`: false for what the style of the flags does not use, which may differ.
  void number(const char* key, double& value, bool has_effect = true) {
    const double saved = get<double>(key, [](const nlohmann::json& j) { return j.is_number(); });
    const bool differs = has_effect && saved != value;
    if (choose(key, differs, fmt::format("{}", saved), fmt::format("{}", value))) value = saved;
  }

  template <typename Style, size_t N>
  void style(const char* key, const std::array<std::string_view, N>& names, Style& value) {
    const auto text = get<std::string>(key, [](const nlohmann::json& j) { return j.is_string(); });
    const auto saved = style_from<Style>(names, text);
    if (!saved)
      throw checkpoint_error(
          {.what = fmt::format("unknown {} \"{}\"", key, printable(text)), .where = where});
    if (choose(key, *saved != value, text, std::string(names[size_t(value)]))) value = *saved;
  }

  /// Never compared: a stable phase is resumed with the tail that ends it.
  void tail(LrScheduleOptions& options) {
    if (rule_ != ScheduleLoadRule::use_checkpoint || !has("wsd_decay_steps")) return;
    number("wsd_decay_steps", options.wsd_decay_steps);
    style("lr_wsd_decay_style", wsd_styles, options.wsd_decay_style);
  }

  int64_t count(const char* key) {
    return get<int64_t>(key, [](const nlohmann::json& j) { return j.is_number_integer() && j >= 0; });
  }

  bool has(const char* key) const { return state_.contains(key); }

  void finish() {
    if (!differences_.empty()) throw UserError(ExitCode::checkpoint, std::move(differences_));
  }

 private:
  static constexpr const char* where = "opt_param_scheduler of the checkpoint";

  template <typename T, typename Check>
  T get(const char* key, Check&& valid) const {
    const auto found = state_.find(key);
    if (found == state_.end() || !valid(*found)) {
      throw checkpoint_error(
          {.what = fmt::format("\"{}\" is missing or of the wrong type", key), .where = where});
    }
    return found->template get<T>();
  }

  /// Whether to use the checkpoint's value.
  bool choose(const char* key, bool differs, const std::string& saved, const std::string& given) {
    if (rule_ == ScheduleLoadRule::use_checkpoint) return true;
    if (rule_ == ScheduleLoadRule::must_match && differs) {
      differences_.push_back(
          {.what = fmt::format("{} is {} in the checkpoint but {} by the flags", key, saved, given),
           .where = where,
           .fix = "pass --override-opt-param-scheduler to use the flags, or "
                  "--use-checkpoint-opt-param-scheduler to use the checkpoint"});
    }
    return false;
  }

  const nlohmann::json& state_;
  ScheduleLoadRule rule_;
  std::vector<Problem> differences_;
};

LrScheduleOptions merged(LrScheduleOptions options, const nlohmann::json& state, ScheduleLoadRule rule) {
  StateReader reader(state, rule);
  const bool decays = options.decay_style != LrDecayStyle::constant;
  const bool weight_decay_changes = options.weight_decay_style != WeightDecayStyle::constant;
  reader.number("max_lr", options.max_lr);
  reader.number("min_lr", options.min_lr, decays);
  reader.number("lr_warmup_steps", options.warmup_steps);
  reader.number("lr_decay_steps", options.decay_steps, decays);
  reader.style("lr_decay_style", lr_styles, options.decay_style);
  reader.tail(options);
  if (reader.has("start_wd")) {
    reader.number("start_wd", options.start_weight_decay);
    reader.number("end_wd", options.end_weight_decay);
    reader.number("wd_incr_steps", options.weight_decay_steps, weight_decay_changes);
    reader.style("wd_incr_style", weight_decay_styles, options.weight_decay_style);
  }
  reader.finish();
  return options;
}

/// A WSD tail that should have begun before `n`, where the schedule so far had another learning rate.
void require_continuous_tail(LrScheduleOptions so_far, const LrScheduleOptions& next, int64_t n) {
  const double left = next.decay_steps - static_cast<double>(n);
  if (next.decay_style != LrDecayStyle::wsd || left >= next.wsd_decay_steps) return;
  so_far.max_lr = next.max_lr;
  so_far.min_lr = next.min_lr;
  const double before = learning_rate(so_far, n), after = learning_rate(next, n);
  if (before == after) return;
  throw config_error(
      {.what = fmt::format("the WSD decay takes {} samples, but {} are left of {} after the {} of the "
                           "checkpoint: the learning rate would change from {} to {} at once",
                           next.wsd_decay_steps, std::max(left, 0.0), next.decay_steps, n, before, after),
       .where = "--lr-wsd-decay-iters",
       .fix = "shorten the WSD decay, or end it later with --lr-decay-iters (or both in samples)"});
}

/// Whole numbers as integers, as in Megatron-LM; only a warm-up may be fractional.
nlohmann::json length(double value) {
  if (value == std::floor(value) && std::abs(value) < 9.0e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

std::optional<LrDecayStyle> lr_decay_style_from_name(std::string_view name) {
  return style_from<LrDecayStyle>(lr_styles, name);
}
std::optional<WsdDecayStyle> wsd_decay_style_from_name(std::string_view name) {
  return style_from<WsdDecayStyle>(wsd_styles, name);
}
std::optional<WeightDecayStyle> weight_decay_style_from_name(std::string_view name) {
  return style_from<WeightDecayStyle>(weight_decay_styles, name);
}

double learning_rate(const LrScheduleOptions& options, int64_t num_steps, const ParamGroupOverrides& group) {
  const double n = static_cast<double>(num_steps);
  const double w = options.warmup_steps;
  const double max_lr = group.max_lr.value_or(options.max_lr);
  const double min_lr = group.min_lr.value_or(options.min_lr);
  if (w > 0.0 && n <= w) return options.init_lr + (max_lr - options.init_lr) * n / w;
  if (options.decay_style == LrDecayStyle::constant) return max_lr;
  if (n > options.decay_steps) return min_lr;
  if (options.decay_style == LrDecayStyle::inverse_square_root) {
    return std::max(min_lr, max_lr * std::pow(std::max(w, 1.0), 0.5) / std::pow(std::max(n, 1.0), 0.5));
  }
  const double r = (n - w) / (options.decay_steps - w);
  double coefficient = 1.0 - r;
  if (options.decay_style == LrDecayStyle::cosine) coefficient = half_cosine(r);
  if (options.decay_style == LrDecayStyle::wsd) coefficient = wsd_coefficient(options, n);
  return min_lr + coefficient * (max_lr - min_lr);
}

double weight_decay(const LrScheduleOptions& options, int64_t num_steps, const ParamGroupOverrides& group) {
  const double n = static_cast<double>(num_steps);
  const double steps = options.weight_decay_steps;
  const bool at_end = n > steps || steps <= 0.0 || options.weight_decay_style == WeightDecayStyle::constant;
  if (at_end) return options.end_weight_decay * group.weight_decay_mult;
  const double ratio = n / steps;
  const double coefficient =
      options.weight_decay_style == WeightDecayStyle::linear ? ratio : half_cosine(1.0 - ratio);
  const double delta = options.end_weight_decay - options.start_weight_decay;
  return (options.start_weight_decay + coefficient * delta) * group.weight_decay_mult;
}

void resolve_lengths(const LrScheduleFlags& flags, LrScheduleOptions& options) {
  if (flags.train_iters.has_value() == flags.train_samples.has_value()) {
    throw config_error({.what = "the training length must be given once, in iterations or in samples",
                        .where = "--train-iters, --train-samples",
                        .fix = "set exactly one of the two"});
  }
  const auto samples = [&](int64_t iters) {
    return flags.samples_of ? static_cast<double>(flags.samples_of(iters))
                            : static_cast<double>(iters) * double(flags.global_batch_size);
  };
  double warmup = 0.0;
  if (flags.train_iters) {
    if (flags.lr_decay_samples) mixed_units("--lr-decay-samples", "use --lr-decay-iters");
    if (flags.lr_wsd_decay_samples) mixed_units("--lr-wsd-decay-samples", "use --lr-wsd-decay-iters");
    if (flags.lr_warmup_samples != 0) mixed_units("--lr-warmup-samples", "use --lr-warmup-iters");
    const int64_t decay = flags.lr_decay_iters.value_or(*flags.train_iters);
    options.decay_steps = samples(decay);
    options.wsd_decay_steps = samples(decay) - samples(decay - flags.lr_wsd_decay_iters.value_or(0));
    options.weight_decay_steps = samples(*flags.train_iters);
    warmup = samples(flags.lr_warmup_iters);
  } else {
    if (flags.lr_decay_iters) mixed_units("--lr-decay-iters", "use --lr-decay-samples");
    if (flags.lr_wsd_decay_iters) mixed_units("--lr-wsd-decay-iters", "use --lr-wsd-decay-samples");
    if (flags.lr_warmup_iters != 0) mixed_units("--lr-warmup-iters", "use --lr-warmup-samples");
    options.decay_steps = static_cast<double>(flags.lr_decay_samples.value_or(*flags.train_samples));
    options.wsd_decay_steps = static_cast<double>(flags.lr_wsd_decay_samples.value_or(0));
    options.weight_decay_steps = static_cast<double>(*flags.train_samples);
    warmup = static_cast<double>(flags.lr_warmup_samples);
  }
  options.warmup_steps = flags.lr_warmup_fraction ? *flags.lr_warmup_fraction * options.decay_steps : warmup;
}

OptimizerParamScheduler::OptimizerParamScheduler(const LrScheduleOptions& options) : options_(options) {
  auto problems = contradictions(options);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

nlohmann::json OptimizerParamScheduler::state() const {
  nlohmann::json state = {{"max_lr", options_.max_lr},
                          {"lr_warmup_steps", length(options_.warmup_steps)},
                          {"num_steps", num_steps_},
                          {"lr_decay_style", lr_styles[size_t(options_.decay_style)]},
                          {"lr_decay_steps", length(options_.decay_steps)},
                          {"min_lr", options_.min_lr},
                          {"start_wd", options_.start_weight_decay},
                          {"end_wd", options_.end_weight_decay},
                          {"wd_incr_style", weight_decay_styles[size_t(options_.weight_decay_style)]},
                          {"wd_incr_steps", length(options_.weight_decay_steps)}};
  if (options_.decay_style == LrDecayStyle::wsd) {
    state["wsd_decay_steps"] = length(options_.wsd_decay_steps);
    state["lr_wsd_decay_style"] = wsd_styles[size_t(options_.wsd_decay_style)];
  }
  return state;
}

void OptimizerParamScheduler::load(const nlohmann::json& state, ScheduleLoadRule rule) {
  const LrScheduleOptions next = merged(options_, state, rule);
  const int64_t num_steps = StateReader(state, rule).count("num_steps");
  auto problems = contradictions(next);
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
  require_continuous_tail(merged(options_, state, ScheduleLoadRule::use_checkpoint), next, num_steps);
  options_ = next;
  num_steps_ = num_steps;
}

}  // namespace teratron
