// Learning rate and weight decay as functions of consumed samples, bitwise equal (in double) to Megatron-LM's
// OptimizerParamScheduler.
//
// n counts samples: it grows by the global batch size at every successful step, not at steps skipped for
// overflow. Flags in iterations are multiplied by the global batch size. With a ramp-up or a schedule of the
// batch size they mean the samples of so many steps.
//
//   n <= w, w > 0          lr = init + (max - init) * n / w                   (warm-up over w samples)
//   constant               lr = max
//   n > decay              lr = min
//   inverse-square-root    lr = max(min, max * sqrt(max(w, 1)) / sqrt(max(n, 1)))
//   otherwise              lr = min + (max - min) * c(r),  r = (n - w) / (decay - w)
//       linear 1 - r;  cosine (1 + cos(pi r)) / 2;
//       WSD 1 until decay - wsd, then with q = progress of the tail:
//           linear 1 - q; cosine; exponential 2 * 0.5^q - 1; minus_sqrt 1 - sqrt(q)   (arXiv:2405.18392)
//
// Weight decay changes from start to end over `weight_decay_steps` samples without a warm-up, and stays
// there:
//   linear in n / steps, or cosine (cos(pi (1 - n / steps)) + 1) / 2.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace teratron {

enum class LrDecayStyle : uint8_t { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdDecayStyle : uint8_t { linear, cosine, exponential, minus_sqrt };
enum class WeightDecayStyle : uint8_t { constant, linear, cosine };

/// Megatron's spelling: "constant", "linear", "cosine", "inverse-square-root", "WSD"; "minus_sqrt"...
std::optional<LrDecayStyle> lr_decay_style_from_name(std::string_view name);
std::optional<WsdDecayStyle> wsd_decay_style_from_name(std::string_view name);
std::optional<WeightDecayStyle> weight_decay_style_from_name(std::string_view name);

/// All lengths in samples; the warm-up may be a fraction of a sample (--lr-warmup-fraction).
struct LrScheduleOptions {
  double init_lr = 0.0;
  double max_lr = 0.0;
  double min_lr = 0.0;
  double warmup_steps = 0.0;
  double decay_steps = 0.0;
  LrDecayStyle decay_style = LrDecayStyle::linear;
  double wsd_decay_steps = 0.0;
  WsdDecayStyle wsd_decay_style = WsdDecayStyle::exponential;
  double start_weight_decay = 0.01;
  double end_weight_decay = 0.01;
  double weight_decay_steps = 0.0;
  WeightDecayStyle weight_decay_style = WeightDecayStyle::constant;
};

/// Overrides for a parameter group: --decoupled-lr, or no weight decay on biases and norms.
struct ParamGroupOverrides {
  std::optional<double> max_lr;
  std::optional<double> min_lr;
  double weight_decay_mult = 1.0;
};

double learning_rate(const LrScheduleOptions& options, int64_t num_steps,
                     const ParamGroupOverrides& group = {});
double weight_decay(const LrScheduleOptions& options, int64_t num_steps,
                    const ParamGroupOverrides& group = {});

/// Flags as given; either iterations or samples.
struct LrScheduleFlags {
  std::optional<int64_t> train_iters;
  std::optional<int64_t> train_samples;
  int64_t global_batch_size = 1;
  /// Samples of the first steps where the batch size varies; null: iterations * global_batch_size.
  std::function<int64_t(int64_t iterations)> samples_of = nullptr;
  std::optional<int64_t> lr_decay_iters;
  std::optional<int64_t> lr_decay_samples;
  std::optional<int64_t> lr_wsd_decay_iters;
  std::optional<int64_t> lr_wsd_decay_samples;
  std::optional<double> lr_warmup_fraction;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
};

/// Sets the four lengths of `options` from the flags. UserError(config) if iterations and samples are mixed.
void resolve_lengths(const LrScheduleFlags& flags, LrScheduleOptions& options);

/// Precedence on resume if the checkpoint and the command line disagree.
enum class ScheduleLoadRule : uint8_t {
  must_match,     // neither flag: UserError(checkpoint) with all differences
  keep_flags,     // --override-opt-param-scheduler
  use_checkpoint  // --use-checkpoint-opt-param-scheduler
};

/// The schedule with its counter. Host state, equal on all ranks.
class OptimizerParamScheduler {
 public:
  /// UserError(config) with all problems if the options contradict each other.
  explicit OptimizerParamScheduler(const LrScheduleOptions& options);

  void step(int64_t samples) { num_steps_ += samples; }
  int64_t num_steps() const { return num_steps_; }
  const LrScheduleOptions& options() const { return options_; }
  double lr(const ParamGroupOverrides& group = {}) const {
    return learning_rate(options_, num_steps_, group);
  }
  double wd(const ParamGroupOverrides& group = {}) const { return weight_decay(options_, num_steps_, group); }

  /// Megatron's keys: max_lr, lr_warmup_steps, num_steps, lr_decay_style, lr_decay_steps, min_lr, start_wd,
  /// end_wd, wd_incr_style, wd_incr_steps; for WSD also wsd_decay_steps, lr_wsd_decay_style.
  nlohmann::json state() const;
  /// Loads num_steps, and the rest according to `rule`. Weight decay and WSD keys may be absent, as in old
  /// checkpoints. UserError(checkpoint) for a missing or mistyped key. With must_match also for a difference,
  /// but the WSD decay may change, and what a constant rate or weight decay does not use. UserError(config)
  /// if the learning rate would jump into a WSD decay that is longer than the rest of the training.
  void load(const nlohmann::json& state, ScheduleLoadRule rule);

 private:
  LrScheduleOptions options_;
  int64_t num_steps_ = 0;
};

}  // namespace teratron
