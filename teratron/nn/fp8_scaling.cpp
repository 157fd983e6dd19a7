#include "teratron/nn/fp8_scaling.h"

#include <cmath>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

int64_t Fp8Scaling::add_layer(std::string weight) {
  TERATRON_ASSERT(!scales_.defined(), "{} comes after the first use", weight);
  layers_.push_back(std::move(weight));
  return static_cast<int64_t>(layers_.size()) - 1;
}

void Fp8Scaling::prepare() {
  if (scales_.defined()) return;
  const auto count = static_cast<int64_t>(layers_.size()) * roles;
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device_);
  scales_ = at::ones({count}, fp32);
  constexpr int64_t spacing = 4;  // cuBLASLt refuses a scale that lies between multiples of 16 bytes
  inverses_ = at::ones({count, spacing}, fp32).select(1, 0);
  amaxes_ = at::zeros({count}, fp32);
  histories_ = at::zeros({count, options_.history}, fp32);
  largest_ = at::full({count}, largest(Fp8Format::e4m3), fp32);
  constexpr auto gradient = static_cast<int64_t>(Role::output_gradient);
  largest_.slice(0, gradient, count, roles).fill_(largest(options_.gradients));
}

Fp8Matrix Fp8Scaling::cast(const Producer& x, const Matrix& matrix, const Wanted& wanted) {
  prepare();
  const int64_t index = matrix.layer * roles + static_cast<int64_t>(matrix.role);
  const bool delayed = options_.recipe == Fp8Options::Recipe::delayed;
  Fp8Cast cast{.format = format(matrix.role),
               .amax = delayed && wanted.recorded ? amaxes_.narrow(0, index, 1) : at::Tensor(),
               .rows = wanted.rows,
               .columns = wanted.columns};
  if (delayed && has_history_) {
    cast.scale = {scales_.narrow(0, index, 1), inverses_.narrow(0, index, 1)};
    return x.in_fp8(cast);
  }
  const at::Tensor plain = x.plain().contiguous();
  cast.scale = fp8_scale_of(plain, cast.format);
  return cast_to_fp8(plain, cast);
}

void Fp8Scaling::update(const Group& ranks) {
  weights_changed();
  if (options_.recipe == Fp8Options::Recipe::tensorwise) return;
  prepare();
  if (ranks.size > 1) ranks.communicator->all_reduce(amaxes_, ReduceOp::max).wait();
  const at::Tensor newest = at::where(amaxes_.isfinite(), amaxes_, at::zeros_like(amaxes_)).unsqueeze(1);
  histories_ = at::cat({newest, histories_.narrow(1, 0, options_.history - 1)}, 1);
  const at::Tensor amax = options_.most_recent ? newest.squeeze(1) : histories_.amax(1);
  const at::Tensor wanted =
      (largest_ / amax * std::exp2(-static_cast<double>(options_.margin))).clamp_max_(largest_fp8_scale);
  scales_.copy_(at::where(amax > 0, wanted, scales_));
  at::reciprocal_out(inverses_, scales_);
  amaxes_.zero_();
  has_history_ = true;
}

std::vector<Fp8Scaling::State> Fp8Scaling::state() {
  if (options_.recipe == Fp8Options::Recipe::tensorwise) return {};
  prepare();
  std::vector<State> states;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const int64_t first = static_cast<int64_t>(layer) * roles;
    states.push_back({"fp8_scale." + layers_[layer], {roles}, scales_.narrow(0, first, roles)});
    states.push_back({"fp8_amax_history." + layers_[layer],
                      {roles, options_.history},
                      histories_.narrow(0, first, roles).view(-1)});
  }
  return states;
}

void Fp8Scaling::restored() {
  at::reciprocal_out(inverses_, scales_);
  amaxes_.zero_();
  has_history_ = true;
  weights_changed();
}

}  // namespace teratron
