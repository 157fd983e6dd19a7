// Loss scale of fp16 training: constant, or dynamic with Megatron-LM's state machine.
//
//   overflow     growth_tracker = 0; hysteresis_tracker -= 1;
//                if that is <= 0: scale = max(scale * backoff, min)
//   clean step   growth_tracker += 1; at the growth interval: growth_tracker = 0, hysteresis refilled,
//                scale *= growth
//
// The hysteresis is not refilled by a back-off: after the first one every further overflow halves at once,
// until the scale grows again. It may become negative and is saved so.
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
  /// A scale that never changes (--loss-scale; 1 for bf16 and fp32). UserError(config) unless positive and
  /// finite.
  static LossScaler constant(float scale);
  /// UserError(config) where an option is out of range.
  static LossScaler dynamic(const LossScalerOptions& options);

  /// What the loss is multiplied by; gradients are divided by it. fp32, as on the device.
  float scale() const { return scale_; }
  bool is_dynamic() const { return dynamic_; }
  /// After every step, skipped ones too.
  void update(bool found_inf);

  /// {"scale", "growth_tracker", "hysteresis_tracker"}; an empty object for a constant scale.
  nlohmann::json state() const;
  /// UserError(checkpoint) where a key is missing or nonsense. A constant scale keeps its own value.
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
