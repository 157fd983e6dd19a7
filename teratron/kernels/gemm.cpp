#include "teratron/kernels/gemm.h"

#include <algorithm>
#include <array>

#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/dropout.h"
#include "teratron/kernels/gemm_activation_cuda.h"
#include "teratron/kernels/gemm_cuda.h"
#include "teratron/kernels/stream.h"

namespace teratron {

namespace {

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

/// Whether cuBLASLt makes the product of these factors, of one type.
bool by_cublaslt(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() && is_half(a) && a.numel() > 0 && b.numel() > 0;
}

/// x, or a copy, with the elements of a row side by side.
at::Tensor in_rows(const at::Tensor& x) {
  TERATRON_ASSERT(x.dim() == 2, "a factor of {} dimensions", x.dim());
  return x.stride(1) == 1 && x.stride(0) >= x.size(1) ? x : x.contiguous();
}

cuda::GemmFactor along_k(const at::Tensor& x) {
  return {.data = address(x), .type = dtype_of(x), .stride = x.stride(0)};
}
cuda::GemmFactor across_k(const at::Tensor& x) {
  return {.data = address(x), .type = dtype_of(x), .stride = x.stride(0), .across_k = true};
}

struct Addends {
  at::Tensor matrix, bias;
};

/// out = a b^T, [m, k] by [n, k] (+ what is defined of `addends`).
void gemm(const at::Tensor& out, const std::array<cuda::GemmFactor, 2>& factors, int64_t k,
          const Addends& addends) {
  TERATRON_ASSERT(out.is_contiguous(), "products go to contiguous tensors");
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, out.options().dtype(at::kByte));
  cuda::gemm({.m = out.size(0),
              .n = out.size(1),
              .k = k,
              .a = factors[0],
              .b = factors[1],
              .addend = address(addends.matrix),
              .bias = address(addends.bias),
              .out = address(out),
              .out_type = dtype_of(out),
              .workspace = address(workspace)},
             current_stream(out));
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) {
  if (!by_cublaslt(x, w)) {
    if (!y.defined()) return at::linear(x, w, bias.defined() ? std::optional(bias) : std::nullopt);
    return bias.defined() ? at::addmm_out(y, bias, x, w.t()) : at::mm_out(y, x, w.t());
  }
  const at::Tensor a = in_rows(x), b = in_rows(w);
  if (!y.defined()) y = at::empty({a.size(0), b.size(0)}, a.options());
  gemm(y, {along_k(a), along_k(b)}, a.size(1), {.matrix = {}, .bias = bias});
  return y;
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& w, at::Tensor dx) {
  if (!by_cublaslt(dy, w)) return dx.defined() ? at::mm_out(dx, dy, w) : at::matmul(dy, w);
  const at::Tensor a = in_rows(dy), b = in_rows(w);
  if (!dx.defined()) dx = at::empty({a.size(0), b.size(1)}, a.options());
  gemm(dx, {along_k(a), across_k(b)}, a.size(1), {});
  return dx;
}

void linear_weight_gradient_(at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, bool add) {
  const at::ScalarType type = sum.scalar_type();
  if (!by_cublaslt(dy, x) || !(type == at::kFloat || type == x.scalar_type())) {
    sum.addmm_(dy.t().to(type), x.to(type), /*beta=*/add ? 1.0 : 0.0);
    return;
  }
  const at::Tensor a = in_rows(dy), b = in_rows(x);
  gemm(sum, {across_k(a), across_k(b)}, a.size(0), {.matrix = add ? sum : at::Tensor(), .bias = {}});
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual) {
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  require_like(residual, x, x.size(0) * w.size(0), "residual");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  if (!by_cublaslt(x, w)) return bias_dropout_add(at::matmul(x, w.t()), bias, residual, {});
  const at::Tensor out = at::empty_like(residual);
  gemm(out, {along_k(x), along_k(w)}, x.size(1), {.matrix = residual, .bias = bias});
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
    const at::Tensor z = linear_forward(x, w, bias);
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
    const at::Tensor da = linear_input_gradient(dy, w);
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
