// Loss scale of fp16 training: constant, or dynamic as in Megatron-LM's DynamicGradScaler.
//
//   overflow     growth_tracker = 0; hysteresis_tracker -= 1; if <= 0: scale = max(scale * backoff, min)
//   clean step   growth_tracker += 1; from the growth interval on: growth_tracker = 0,
//                hysteresis_tracker reset, scale *= growth
//
// A back-off does not reset the hysteresis: after the first one, every further overflow halves the scale
// immediately until it grows again. The hysteresis_tracker may become negative and is saved so.
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace teratron {

struct LossScalerOptions {
  float initial_scale = 4294967296.0F;  // --initial-loss-scale, 2^32
  float min_scale = 1.0F;               // --min-loss-scale
  float growth_factor = 2.0F;
  float backoff_factor = 0.5F;
  int64_t growth_interval = 1000;  // --loss-scale-window
  int64_t hysteresis = 2;          // --hysteresis
};

class LossScaler {
 public:
  /// A constant scale (--loss-scale; 1 for bf16 and fp32). UserError(config) unless positive and finite.
  static LossScaler constant(float scale);
  /// UserError(config) if an option is out of range.
  static LossScaler dynamic(const LossScalerOptions& options);

  /// Factor of the loss, by which gradients are divided. fp32, as on the device.
  float scale() const { return scale_; }
  bool is_dynamic() const { return dynamic_; }
  /// After every step, including skipped ones.
  void update(bool found_inf);

  /// {"scale", "growth_tracker", "hysteresis_tracker"}; an empty object for a constant scale.
  nlohmann::json state() const;
  /// UserError(checkpoint) if a key is missing or invalid. A constant scale ignores the state.
  void load(const nlohmann::json& state);

 private:
  LossScaler() = default;

  LossScalerOptions options_;
  bool dynamic_ = false;
  float scale_ = 1.0F;
  int64_t growth_tracker_ = 0;
  int64_t hysteresis_tracker_ = 0;
};

}  // namespace teratron
