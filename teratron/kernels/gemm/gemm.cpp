#include "teratron/kernels/gemm/gemm.h"

#include <algorithm>
#include <array>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/kernels/gemm/gemm_cuda.h"
#include "teratron/kernels/pointwise/dropout.h"

namespace teratron {

namespace {

/// Whether cuBLASLt makes products of x.
bool by_cublaslt(const at::Tensor& x, const at::Tensor& other) {
  return x.is_cuda() && is_half(x.scalar_type()) && x.numel() > 0 && other.numel() > 0;
}

/// A factor [rows, k] of a product, or stored [k, rows].
struct Factor {
  at::Tensor matrix;
  bool across_k = false;

  int64_t rows() const { return matrix.size(across_k ? 1 : 0); }
  int64_t k() const { return matrix.size(across_k ? 0 : 1); }
  /// What cuBLASLt can read: the elements of a row side by side.
  Factor readable() const {
    TERATRON_ASSERT(matrix.dim() == 2, "a factor of {} dimensions", matrix.dim());
    const bool is = matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1);
    return is ? *this : Factor{matrix.clone(at::MemoryFormat::Contiguous), across_k};
  }
  cuda::GemmFactor raw() const {
    return {
        .data = address(matrix), .type = dtype_of(matrix), .stride = matrix.stride(0), .across_k = across_k};
  }
};

struct Addends {
  at::Tensor matrix, bias;
};

/// What a product is multiplied by and what is added to it, as cuBLASLt reads them from the device.
at::Tensor weights_of(const at::Tensor& factor, const Addends& addends) {
  if (!factor.defined()) return {};
  TERATRON_ASSERT(factor.scalar_type() == at::kFloat && factor.numel() == 1, "a factor {}",
                  factor.toString());
  return at::cat({factor.view({1}), at::full({1}, addends.matrix.defined() ? 1.0 : 0.0, factor.options())});
}

/// out = a b^T (times `scale` [1], if defined) (+ what is defined of `addends`), for factors of one type.
void gemm(const at::Tensor& out, const std::array<Factor, 2>& factors, const Addends& addends,
          const at::Tensor& scale = {}) {
  const Factor a = factors[0].readable(), b = factors[1].readable();
  TERATRON_ASSERT(b.matrix.device() == a.matrix.device() &&
                      b.matrix.scalar_type() == a.matrix.scalar_type() && b.k() == a.k() &&
                      out.device() == a.matrix.device() && out.is_contiguous() &&
                      out.numel() == a.rows() * b.rows(),
                  "product of {} [{}, {}] by {} [{}, {}] into {} numbers", a.matrix.toString(), a.rows(),
                  a.k(), b.matrix.toString(), b.k(), b.rows(), out.numel());
  if (addends.bias.defined()) require_like(addends.bias, out, b.rows(), "bias");
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, out.options().dtype(at::kByte));
  const at::Tensor weights = weights_of(scale, addends);
  cuda::gemm({.m = a.rows(),
              .n = b.rows(),
              .k = a.k(),
              .a = a.raw(),
              .b = b.raw(),
              .addend = address(addends.matrix),
              .bias = address(addends.bias),
              .out = address(out),
              .out_type = dtype_of(out),
              .workspace = address(workspace),
              .weights = static_cast<const float*>(address(weights))},
             current_stream(out));
}

/// `result`, where it is to be.
at::Tensor put(const at::Tensor& place, const at::Tensor& result) {
  return place.defined() ? place.copy_(result) : result;
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) {
  if (y.defined()) require_like(y, x, x.size(0) * w.size(0), "y");
  if (!by_cublaslt(x, w)) {
    if (cpu::suits_multiply(x, w, bias)) return put(y, cpu::multiply(x, w, bias));
    if (!y.defined()) return at::linear(x, w, bias.defined() ? std::optional(bias) : std::nullopt);
    return bias.defined() ? at::addmm_out(y, bias, x, w.t()) : at::mm_out(y, x, w.t());
  }
  if (!y.defined()) y = at::empty({x.size(0), w.size(0)}, x.options());
  gemm(y, {Factor{x}, Factor{w}}, {.matrix = {}, .bias = bias});
  return y;
}

namespace {

/// With the factor multiplied, for products that take none.
at::Tensor plain(const OutputGradient& dy) {
  return dy.factor.defined() ? (dy.values * dy.factor).to(dy.values.scalar_type()) : dy.values;
}

}  // namespace

at::Tensor linear_input_gradient(const OutputGradient& gradient, const at::Tensor& w, at::Tensor dx) {
  const at::Tensor& values = gradient.values;
  const bool by_gemm = by_cublaslt(values, w);
  const at::Tensor dy = by_gemm ? values : plain(gradient);
  if (dx.defined()) require_like(dx, dy, dy.size(0) * w.size(1), "dx");
  if (!by_gemm) {
    if (cpu::suits_multiply(dy, w)) return put(dx, cpu::multiply(dy, w.t(), {}));
    return dx.defined() ? at::mm_out(dx, dy, w) : at::matmul(dy, w);
  }
  if (!dx.defined()) dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  gemm(dx, {Factor{dy}, Factor{w, true}}, {}, gradient.factor);
  return dx;
}

void linear_weight_gradient_(at::Tensor sum, const OutputGradient& gradient, const at::Tensor& x, bool add) {
  const at::ScalarType type = sum.scalar_type();
  const at::Tensor& values = gradient.values;
  const bool one_type =
      values.scalar_type() == x.scalar_type() && (type == at::kFloat || type == x.scalar_type());
  if (!by_cublaslt(values, x) || !one_type) {
    const at::Tensor dy = plain(gradient);
    if (cpu::suits_add_product(sum, dy, x)) return cpu::add_product(sum, dy, x, add);
    sum.addmm_(dy.t().to(type), x.to(type), /*beta=*/add ? 1.0 : 0.0);
    return;
  }
  gemm(sum, {Factor{values, true}, Factor{x, true}}, {.matrix = add ? sum : at::Tensor(), .bias = {}},
       gradient.factor);
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual) {
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  require_like(residual, x, x.size(0) * w.size(0), "residual");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  if (!by_cublaslt(x, w)) return bias_dropout_add(linear_forward(x, w, {}), bias, residual, {});
  const at::Tensor out = at::empty_like(residual);
  gemm(out, {Factor{x}, Factor{w}}, {.matrix = residual, .bias = bias});
  return out;
}

namespace {

/// Whether our kernels take these tensors, all of one type.
bool fit_our_kernels(const cuda::GemmActivationShape& shape, std::initializer_list<at::Tensor> tensors) {
  const bool fit = std::ranges::all_of(tensors, [](const at::Tensor& x) {
    return !x.defined() || (x.is_cuda() && x.scalar_type() == at::kBFloat16 && is_aligned(x));
  });
  return fit && shape.width % 8 == 0 && shape.k % 8 == 0;
}

bool in_one_kernel(const cuda::GemmActivationShape& shape, std::initializer_list<at::Tensor> tensors) {
  return fit_our_kernels(shape, tensors) && cuda::has_gemm_activation(shape);
}

cuda::GemmTurn raw(const QkvTurn& turn) {
  const auto& [table, style, positions] = turn.rotation;
  return {.cos = static_cast<const float*>(address(table.cos)),
          .sin = static_cast<const float*>(address(table.sin)),
          .positions = positions.const_data_ptr<int64_t>(),
          .stride_s = positions.stride(0),
          .stride_b = positions.stride(1),
          .batch = static_cast<int>(positions.size(1)),
          .per_group = static_cast<int>(turn.per_group),
          .channels = static_cast<int>(turn.channels)};
}

}  // namespace

at::Tensor linear_turned(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                         const QkvTurn& turn) {
  const cuda::GemmActivationShape shape{
      .rows = x.size(0), .width = w.size(0), .k = x.size(1), .activation = Activation::relu};
  const auto& [table, style, positions] = turn.rotation;
  const bool fits_rotation = style == RopeStyle::half && 2 * table.cos.size(1) == turn.channels &&
                             is_aligned(table.cos) && is_aligned(table.sin);
  if (!fits_rotation || !x.is_contiguous() || !fit_our_kernels(shape, {x, w, bias}) ||
      !cuda::has_gemm_turn(shape, turn.channels)) {
    const at::Tensor y = linear_forward(x, w, bias);
    turn_qkv_(y, turn);
    return y;
  }
  require_like(w, x, shape.width * shape.k, "w");
  if (bias.defined()) require_like(bias, x, shape.width, "bias");
  const at::Tensor y = at::empty({shape.rows, shape.width}, x.options());
  require_rotation(queries_and_keys(y, turn), table, positions);
  cuda::gemm_turn(
      shape, {.x = address(x), .w = address(w), .bias = address(bias), .out = address(y), .turn = raw(turn)},
      current_stream(x));
  return y;
}

void linear_activation(const Activated& into, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& bias, Activation activation) {
  const auto& [y, z] = into;
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  TERATRON_ASSERT(w.size(0) % parts_of(activation) == 0, "gate|up of odd width {}", w.size(0));
  const cuda::GemmActivationShape shape{
      .rows = x.size(0), .width = w.size(0) / parts_of(activation), .k = x.size(1), .activation = activation};
  require_like(y, x, shape.rows * shape.width, "y");
  if (z.defined()) require_like(z, x, shape.rows * w.size(0), "z");
  if (!in_one_kernel(shape, {x, w, bias, y, z})) {
    activation_forward(linear_forward(x, w, bias, z), {}, activation, y);
    return;
  }
  cuda::gemm_activation_forward(
      shape, {.x = address(x), .w = address(w), .bias = address(bias), .z = address(z), .out = address(y)},
      current_stream(x));
}

SummedGradient linear_activation_backward(const ArgumentGradient& into, const at::Tensor& dy,
                                          const at::Tensor& w, const at::Tensor& z, Activation activation) {
  const auto& [place, sum] = into;
  require_float(dy, "dy");
  require_like(w, dy, dy.size(1) * w.size(1), "w");
  require_like(z, dy, dy.size(0) * w.size(1) * parts_of(activation), "z");
  if (place.defined()) require_like(place, z, z.numel(), "dz");
  const cuda::GemmActivationShape shape{
      .rows = dy.size(0), .width = w.size(1), .k = dy.size(1), .activation = activation};
  if (!in_one_kernel(shape, {dy, w, z, place})) {
    const at::Tensor da = linear_input_gradient(dy, w);
    if (sum) return activation_backward_summed(da, z, {}, activation, {.dx = place, .column_sum = *sum});
    return {activation_backward(da, z, {}, activation, place), {}};
  }
  const at::Tensor dz = place.defined() ? place : at::empty_like(z);
  SumInto sum_into;
  at::Tensor partial;
  if (sum) {
    const auto sums = z.options().dtype(at::kFloat);
    const int64_t wide = shape.width * parts_of(activation);
    sum_into = place_of_sum(*sum, wide, sums);
    partial = at::empty({cuda::gemm_activation_partials(shape), wide}, sums);
  }
  cuda::gemm_activation_backward(shape,
                                 {.dy = address(dy),
                                  .w = address(w),
                                  .z = address(z),
                                  .dz = address(dz),
                                  .sum = row_sum(partial, sum_into)},
                                 current_stream(dy));
  return {dz, sum_into.out};
}

}  // namespace teratron
