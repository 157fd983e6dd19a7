#include "teratron/nn/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The adjoint is the inverse rotation, times the same factor.
struct Rotation : torch::autograd::Function<Rotation> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& positions,
                            const RopeTable& table, RopeStyle style) {
    context->save_for_backward({positions});
    save_pointer(context, "table", &table);
    context->saved_data["style"] = static_cast<int64_t>(style);
    return rope(x, table, positions, {style, RopeDirection::forward});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto style = static_cast<RopeStyle>(context->saved_data["style"].toInt());
    const RopeTable& table = *saved_pointer<const RopeTable>(context, "table");
    at::Tensor dx = rope(gradients[0].contiguous(), table, saved[0], {style, RopeDirection::inverse});
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Llama 3.1's constants (Grattafiori et al. 2024).
at::Tensor llama3_scaled(const at::Tensor& frequencies, const RotaryConfig& config) {
  constexpr double low = 1.0;
  const double high = config.llama3_high;
  const at::Tensor periods = frequencies * (config.llama3_positions / (2.0 * M_PI));
  const at::Tensor unscaled = high > low ? ((periods - low) / (high - low)).clamp(0.0, 1.0)
                                         : periods.gt(low).to(frequencies.scalar_type());
  return frequencies * (unscaled + (1.0 - unscaled) / config.llama3_factor);
}

// The (fractional) pair of channels that turns `turns` times over the original positions.
double channel_of_turns(double turns, const RotaryConfig& config, int64_t rotated) {
  const double period = config.yarn.positions / (turns * 2.0 * M_PI);
  return static_cast<double>(rotated) * std::log(period) / (2.0 * std::log(config.base));
}

at::Tensor yarn_scaled(const at::Tensor& frequencies, const RotaryConfig& config) {
  const int64_t rotated = 2 * frequencies.numel();
  double first = channel_of_turns(config.yarn.beta_fast, config, rotated);
  double last = channel_of_turns(config.yarn.beta_slow, config, rotated);
  if (config.yarn.whole_channels) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(rotated - 1));
  if (first == last) last += 1e-3;
  const at::Tensor ramp =
      ((at::arange(frequencies.numel(), frequencies.options()) - first) / (last - first)).clamp(0.0, 1.0);
  return frequencies * (1.0 - ramp + ramp / config.yarn.factor);
}

double attention_factor(const Yarn& yarn) {
  if (yarn.factor <= 1.0) return 1.0;
  const auto magnitude = [&](double scale) { return 0.1 * scale * std::log(yarn.factor) + 1.0; };
  return magnitude(yarn.mscale) / magnitude(yarn.mscale_all_dim);
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const Options& options, const at::TensorOptions& model)
    : style_(options.config.interleaved ? RopeStyle::interleaved : RopeStyle::half),
      positions_(options.positions),
      longest_short_(options.config.longrope.short_factors.empty() ? std::numeric_limits<int64_t>::max()
                                                                   : options.config.longrope.positions) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(options.head_width) * options.config.percent);
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, rotated, 2, fp64) / static_cast<double>(rotated);
  at::Tensor frequencies = at::pow(options.config.base, exponents).reciprocal();
  if (options.config.llama3_factor > 0.0) {
    frequencies = llama3_scaled(frequencies, options.config);
  }
  if (options.config.yarn.factor > 0.0) {
    frequencies = yarn_scaled(frequencies, options.config);
  }
  const at::Tensor positions = at::arange(options.positions, fp64) / options.config.interpolation;
  const LongRope& longrope = options.config.longrope;
  const auto divided_by = [&](const std::vector<double>& factors) {
    TERATRON_ASSERT(std::ssize(factors) == frequencies.numel(), "{} factors of LongRoPE for {} frequencies",
                    factors.size(), frequencies.numel());
    return at::outer(positions, frequencies / at::tensor(factors, fp64));
  };
  const at::Tensor angles =
      longrope.short_factors.empty()
          ? at::outer(positions, frequencies)
          : at::cat({divided_by(longrope.short_factors), divided_by(longrope.long_factors)});
  const bool wide = c10::typeMetaToScalarType(model.dtype()) == at::kDouble;
  const auto target = at::TensorOptions().dtype(wide ? at::kDouble : at::kFloat).device(model.device());
  const double magnitude = attention_factor(options.config.yarn) * longrope.magnitude;
  const double direction = options.config.reversed ? -1.0 : 1.0;
  table_ = {(angles.cos() * magnitude).to(target), (angles.sin() * (magnitude * direction)).to(target)};
}

at::Tensor RotaryEmbedding::apply(const at::Tensor& x, const at::Tensor& positions_SB) const {
  return Rotation::apply(x, positions_SB, table_, style_);
}

void RotaryEmbedding::rotate_(const at::Tensor& x, const at::Tensor& positions_SB) const {
  rope_(x, table_, positions_SB, {style_, RopeDirection::forward});
}

at::Tensor RotaryEmbedding::rotate(const at::Tensor& x, const at::Tensor& positions_SB) const {
  return rope(x, table_, positions_SB, {style_, RopeDirection::forward});
}

}  // namespace teratron
