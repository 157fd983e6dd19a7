#include "teratron/kernels/mamba/fused_parts.h"

#include <ATen/ATen.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron::mamba {

const float* float_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

at::Tensor readable_weights(const at::Tensor& weights, at::ScalarType rows) {
  if (!weights.defined()) return weights;
  const bool same = weights.scalar_type() == rows || weights.scalar_type() == at::kFloat;
  return (same ? weights : as_wide(weights)).contiguous();
}

cuda::WeightVector weight_vector(const at::Tensor& readable) {
  return {address(readable), readable.defined() && readable.scalar_type() == at::kFloat};
}

bool FusedConv::supports(const at::Tensor& weight) {
  return weight.size(0) % 4 == 0 && weight.size(2) >= 2 && weight.size(2) <= cuda::max_conv_width;
}

FusedConv::FusedConv(const at::Tensor& x, const at::Tensor& before, const at::Tensor& document,
                     const Weights& weights)
    : x_(x),
      before_(before.defined() ? before.to(x.scalar_type()).contiguous() : before),
      document_(document),
      weight_(readable_weights(weights.weight.squeeze(1), x.scalar_type())),
      bias_(readable_weights(weights.bias, x.scalar_type())) {}

cuda::CausalConv FusedConv::describe() const {
  return {.batch = static_cast<int>(x_.size(1)),
          .tokens = static_cast<int>(x_.size(0)),
          .channels = static_cast<int>(x_.size(2)),
          .width = static_cast<int>(weight_.size(1)),
          .dtype = dtype_of(x_),
          .x = {address(x_), x_.stride(1)},
          .before = address(before_),
          .document = document_.defined() ? document_.const_data_ptr<int64_t>() : nullptr,
          .weight = weight_vector(weight_),
          .bias = weight_vector(bias_)};
}

at::Tensor FusedConv::forward(DeviceStream stream) const {
  const at::Tensor y = at::empty(x_.sizes(), x_.options());
  cuda::causal_conv(describe(), y.data_ptr(), stream);
  return y;
}

at::Tensor FusedConv::after() const {
  const int64_t kept = weight_.size(1) - 1, tokens = x_.size(0);
  if (tokens >= kept) return x_.narrow(0, tokens - kept, kept).transpose(0, 1);
  const at::Tensor before =
      before_.defined() ? before_ : at::zeros({x_.size(1), kept, x_.size(2)}, x_.options());
  return at::cat({before, x_.transpose(0, 1)}, 1).narrow(1, tokens, kept);
}

FusedConv::Gradients FusedConv::backward(const at::Tensor& dy, const at::Tensor& dx,
                                         DeviceStream stream) const {
  TERATRON_ASSERT(dx.strides() == x_.strides(), "the gradient of the convolution has other rows");
  const cuda::CausalConv conv = describe();
  const int64_t width = weight_.size(1);
  const at::Tensor sums = at::empty({cuda::causal_conv_gradient_rows(conv), width + 1, x_.size(2)},
                                    x_.options().dtype(at::kFloat));
  cuda::causal_conv_backward(
      conv, {.dy = address(dy), .dx = address(dx), .dweight = sums.mutable_data_ptr<float>()}, stream);
  const at::Tensor sum = sums.sum(0);
  return {sum.narrow(0, 0, width).t().contiguous(), bias_.defined() ? sum[width] : at::Tensor()};
}

cuda::ConvStep conv_step(const at::Tensor& x, const StateTables& tables, const FusedConv::Weights& weights) {
  return {.rows = static_cast<int>(x.size(0)),
          .channels = static_cast<int>(x.size(1)),
          .width = static_cast<int>(weights.weight.size(2)),
          .x = {address(x), x.stride(0)},
          .inputs = address(tables.conv),
          .weight = weight_vector(weights.weight),
          .bias = weight_vector(weights.bias),
          .from = tables.rows.from_R.const_data_ptr<int64_t>(),
          .to = tables.rows.to_R.const_data_ptr<int64_t>()};
}

at::Tensor FusedGatedNorm::forward() const {
  const at::Tensor out = at::empty_like(y);
  cuda::gated_norm(shape, {address(y), z, weight_vector(weight)}, address(out), stream);
  return out;
}

FusedGatedNorm::Gradients FusedGatedNorm::backward(const at::Tensor& dout, const cuda::TokenRows& dz) const {
  const at::Tensor dy = at::empty_like(y);
  at::Tensor sums;
  if (weight.defined()) {
    sums = at::empty({cuda::gated_norm_gradient_rows(shape), shape.groups, shape.width},
                     y.options().dtype(at::kFloat));
  }
  cuda::gated_norm_backward(shape, {address(y), z, weight_vector(weight)},
                            {.dout = address(dout),
                             .dy = address(dy),
                             .dz = dz,
                             .dweight = sums.defined() ? sums.mutable_data_ptr<float>() : nullptr},
                            stream);
  return {dy, sums.defined() ? sums.sum(0) : sums};
}

}  // namespace teratron::mamba
