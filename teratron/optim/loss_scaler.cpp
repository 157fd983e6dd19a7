#include "teratron/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

LossScaler LossScaler::constant(float scale) {
  if (!(scale > 0.0F) || !std::isfinite(scale)) {
    throw config_error({.what = fmt::format("loss-scale = {} is not a positive number", scale),
                        .where = "--loss-scale",
                        .fix = "use a power of two such as 65536, or omit it for a dynamic scale"});
  }
  LossScaler scaler;
  scaler.scale_ = scale;
  return scaler;
}

LossScaler LossScaler::dynamic(const LossScalerOptions& options) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, std::string what, const char* where) {
    if (!holds) problems.push_back({.what = std::move(what), .where = where, .fix = ""});
  };
  require(options.min_scale > 0.0F && std::isfinite(options.min_scale),
          fmt::format("min-loss-scale = {} is not a positive number", options.min_scale), "--min-loss-scale");
  require(options.initial_scale >= options.min_scale && std::isfinite(options.initial_scale),
          fmt::format("initial-loss-scale = {} is below min-loss-scale = {} or infinite",
                      options.initial_scale, options.min_scale),
          "--initial-loss-scale");
  require(options.growth_factor > 1.0F, fmt::format("growth factor {} is not above 1", options.growth_factor),
          "");
  require(options.backoff_factor > 0.0F && options.backoff_factor < 1.0F,
          fmt::format("back-off factor {} is not between 0 and 1", options.backoff_factor), "");
  require(options.growth_interval > 0,
          fmt::format("loss-scale-window = {} is not positive", options.growth_interval),
          "--loss-scale-window");
  require(options.hysteresis > 0, fmt::format("hysteresis = {} is not positive", options.hysteresis),
          "--hysteresis");
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));

  LossScaler scaler;
  scaler.options_ = options;
  scaler.dynamic_ = true;
  scaler.scale_ = options.initial_scale;
  scaler.hysteresis_tracker_ = options.hysteresis;
  return scaler;
}

void LossScaler::update(bool found_inf) {
  if (!dynamic_) return;
  if (found_inf) {
    growth_tracker_ = 0;
    --hysteresis_tracker_;
    if (hysteresis_tracker_ <= 0) scale_ = std::max(scale_ * options_.backoff_factor, options_.min_scale);
    return;
  }
  // A run that resumes with a smaller interval may be beyond it.
  if (++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  hysteresis_tracker_ = options_.hysteresis;
  // An infinite scale could never back off.
  const float grown = scale_ * options_.growth_factor;
  if (std::isfinite(grown)) scale_ = grown;
}

nlohmann::json LossScaler::state() const {
  if (!dynamic_) return nlohmann::json::object();
  return {
      {"scale", scale_}, {"growth_tracker", growth_tracker_}, {"hysteresis_tracker", hysteresis_tracker_}};
}

void LossScaler::load(const nlohmann::json& state) {
  if (!dynamic_) return;
  const auto scale = state.find("scale");
  const auto growth = state.find("growth_tracker");
  const auto hysteresis = state.find("hysteresis_tracker");
  const bool sound = scale != state.end() && scale->is_number() && *scale > 0.0 && growth != state.end() &&
                     growth->is_number_integer() && hysteresis != state.end() &&
                     hysteresis->is_number_integer() && std::isfinite(scale->get<float>());
  if (!sound) {
    throw checkpoint_error(
        {.what = "the loss scaler's scale, growth_tracker or hysteresis_tracker is missing or invalid",
         .where = "grad_scaler of the checkpoint",
         .fix = "pass --no-load-optim to reset the optimizer state"});
  }
  scale_ = scale->get<float>();
  growth_tracker_ = growth->get<int64_t>();
  hysteresis_tracker_ = hysteresis->get<int64_t>();
}

}  // namespace teratron
