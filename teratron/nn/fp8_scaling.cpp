#include "teratron/nn/fp8_scaling.h"

#include <cmath>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

int64_t Fp8Scaling::add_layer(std::string weight, int64_t elements) {
  TERATRON_ASSERT(!scales_.defined(), "{} is added after the first cast", weight);
  layers_.push_back(std::move(weight));
  weight_elements_ += elements;
  return static_cast<int64_t>(layers_.size()) - 1;
}

void Fp8Scaling::allocate() {
  if (scales_.defined()) return;
  const auto count = static_cast<int64_t>(layers_.size()) * roles;
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device_);
  scales_ = at::ones({count}, fp32);
  constexpr int64_t spacing = 4;  // cuBLASLt requires 16-byte aligned scales
  scales_inv_ = at::ones({count, spacing}, fp32).select(1, 0);
  amaxes_ = at::zeros({count}, fp32);
  histories_ = at::zeros({count, options_.history}, fp32);
  largest_ = at::full({count}, largest(Fp8Format::e4m3), fp32);
  constexpr auto gradient = static_cast<int64_t>(Role::output_grad);
  largest_.slice(0, gradient, count, roles).fill_(largest(options_.gradients));
}

Fp8Matrix Fp8Scaling::cast(const LazyTensor& x, const Matrix& matrix, const Outputs& outputs) {
  allocate();
  const int64_t index = matrix.layer * roles + static_cast<int64_t>(matrix.role);
  const bool delayed = options_.recipe == Fp8Options::Recipe::delayed;
  Fp8Cast cast{.format = format(matrix.role),
               .amax = delayed && outputs.record_amax ? amaxes_.narrow(0, index, 1) : at::Tensor(),
               .rows = outputs.rows,
               .columns = outputs.columns,
               .groups = outputs.groups};
  if (delayed && has_history_) {
    cast.scale = {scales_.narrow(0, index, 1), scales_inv_.narrow(0, index, 1)};
    return x.compute_fp8(cast);
  }
  const at::Tensor dense = x.compute().contiguous();
  cast.scale = compute_fp8_scale(dense, cast.format, cast.groups);
  return cast_to_fp8(dense, cast);
}

void Fp8Scaling::update(const Group& ranks) {
  invalidate_weights();
  if (options_.recipe == Fp8Options::Recipe::tensorwise) return;
  allocate();
  if (ranks.size > 1) ranks.communicator->all_reduce(amaxes_, ReduceOp::max).wait();
  const at::Tensor newest = at::where(amaxes_.isfinite(), amaxes_, at::zeros_like(amaxes_)).unsqueeze(1);
  histories_ = at::cat({newest, histories_.narrow(1, 0, options_.history - 1)}, 1);
  const at::Tensor amax = options_.most_recent ? newest.squeeze(1) : histories_.amax(1);
  const at::Tensor scales =
      (largest_ / amax * std::exp2(-static_cast<double>(options_.margin))).clamp_max_(largest_fp8_scale);
  scales_.copy_(at::where(amax > 0, scales, scales_));
  at::reciprocal_out(scales_inv_, scales_);
  amaxes_.zero_();
  has_history_ = true;
}

std::vector<Fp8Scaling::State> Fp8Scaling::state() {
  if (options_.recipe == Fp8Options::Recipe::tensorwise) return {};
  allocate();
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

void Fp8Scaling::on_state_loaded() {
  at::reciprocal_out(scales_inv_, scales_);
  amaxes_.zero_();
  has_history_ = true;
  invalidate_weights();
}

}  // namespace teratron
