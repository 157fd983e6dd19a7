#include "teratron/kernels/gemm.h"

#include <algorithm>

#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/dropout.h"
#include "teratron/kernels/gemm_activation_cuda.h"
#include "teratron/kernels/gemm_cuda.h"
#include "teratron/kernels/stream.h"

namespace teratron {

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual) {
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  require_like(residual, x, x.size(0) * w.size(0), "residual");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  const bool half = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  if (!x.is_cuda() || !half || x.numel() == 0) {
    return bias_dropout_add(at::matmul(x, w.t()), bias, residual, {});
  }
  const at::Tensor out = at::empty_like(residual);
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, x.options().dtype(at::kByte));
  const Dtype type = dtype_of(x);
  cuda::gemm({.m = x.size(0),
              .n = w.size(0),
              .k = x.size(1),
              .a_type = type,
              .b_type = type,
              .out_type = type,
              .a = address(x),
              .b = address(w),
              .a_inverse = nullptr,
              .b_inverse = nullptr,
              .addend = address(residual),
              .bias = address(bias),
              .out = address(out),
              .fast_accumulation = false,
              .workspace = address(workspace)},
             current_stream(x));
  return out;
}

namespace {

/// Whether the kernel takes these tensors, all of one type.
bool in_one_kernel(const cuda::GemmActivationShape& shape, std::initializer_list<at::Tensor> tensors) {
  const bool fit = std::ranges::all_of(tensors, [](const at::Tensor& x) {
    return !x.defined() || (x.is_cuda() && x.scalar_type() == at::kBFloat16 &&
                            reinterpret_cast<uintptr_t>(address(x)) % 16 == 0);
  });
  return fit && shape.width % 8 == 0 && shape.k % 8 == 0 && cuda::has_gemm_activation(shape);
}

int64_t parts_of(Activation activation) {
  return is_gated(activation) ? 2 : 1;
}

}  // namespace

Activated linear_activation(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                            Activation activation, bool wants_z) {
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  TERATRON_ASSERT(w.size(0) % parts_of(activation) == 0, "gate|up of odd width {}", w.size(0));
  const cuda::GemmActivationShape shape{
      .rows = x.size(0), .width = w.size(0) / parts_of(activation), .k = x.size(1), .activation = activation};
  if (!in_one_kernel(shape, {x, w, bias})) {
    const at::Tensor z = at::linear(x, w, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
    return {activation_forward(z, {}, activation), wants_z ? z : at::Tensor()};
  }
  const Activated result{at::empty({shape.rows, shape.width}, x.options()),
                         wants_z ? at::empty({shape.rows, w.size(0)}, x.options()) : at::Tensor()};
  cuda::gemm_activation_forward(shape,
                                {.x = address(x),
                                 .w = address(w),
                                 .bias = address(bias),
                                 .z = address(result.z),
                                 .out = address(result.y)},
                                current_stream(x));
  return result;
}

SummedGradient linear_activation_backward(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& z,
                                          Activation activation, const WantedSum& sum) {
  require_float(dy, "dy");
  require_like(w, dy, dy.size(1) * w.size(1), "w");
  require_like(z, dy, dy.size(0) * w.size(1) * parts_of(activation), "z");
  const cuda::GemmActivationShape shape{
      .rows = dy.size(0), .width = w.size(1), .k = dy.size(1), .activation = activation};
  if (!in_one_kernel(shape, {dy, w, z})) {
    const at::Tensor da = at::matmul(dy, w);
    if (sum) return activation_backward_summed(da, z, {}, activation, *sum);
    return {activation_backward(da, z, {}, activation), {}};
  }
  SummedGradient result{at::empty_like(z), {}};
  at::Tensor partial;
  if (sum) {
    const auto sums = z.options().dtype(at::kFloat);
    const int64_t wide = shape.width * parts_of(activation);
    result.column_sum = place_of_sum(*sum, wide, sums);
    partial = at::empty({cuda::gemm_activation_partials(shape), wide}, sums);
  }
  cuda::gemm_activation_backward(shape,
                                 {.dy = address(dy),
                                  .w = address(w),
                                  .z = address(z),
                                  .dz = address(result.dx),
                                  .partial = static_cast<float*>(address(partial)),
                                  .column_sum = static_cast<float*>(address(result.column_sum))},
                                 current_stream(dy));
  return result;
}

}  // namespace teratron
