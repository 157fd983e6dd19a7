#include "teratron/kernels/gemm/gemm.h"

#include <algorithm>
#include <array>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/kernels/gemm/launchers.h"
#include "teratron/kernels/pointwise/dropout.h"

namespace teratron {

namespace {

/// Whether cuBLASLt multiplies x.
bool use_cublaslt(const at::Tensor& x, const at::Tensor& other) {
  return x.is_cuda() && is_half(x.scalar_type()) && x.numel() > 0 && other.numel() > 0;
}

/// Whether x has so few rows that the kernel for them reads w faster than cuBLASLt does.
bool use_skinny_gemm(const at::Tensor& x, const at::Tensor& w) {
  return use_cublaslt(x, w) && x.dim() == 2 && x.is_contiguous() && w.is_contiguous() && x.size(1) % 8 == 0 &&
         x.size(1) == w.size(1) && x.scalar_type() == w.scalar_type() && x.device() == w.device() &&
         is_aligned(x) && is_aligned(w) && cuda::has_skinny_gemm(x.size(0));
}

cuda::SkinnyGemmArgs skinny_args(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                                 const at::Tensor& bias) {
  require_like(out, x, out.numel(), "output");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  return {.rows = x.size(0),
          .n = w.size(0),
          .k = w.size(1),
          .x = address(x),
          .w = address(w),
          .bias = address(bias),
          .addend = nullptr,
          .out = address(out),
          .dtype = dtype_of(x)};
}

/// A GEMM operand [rows, k], stored [k, rows] if `mn_major`.
struct Operand {
  at::Tensor matrix;
  bool mn_major = false;

  int64_t rows() const { return matrix.size(mn_major ? 1 : 0); }
  int64_t k() const { return matrix.size(mn_major ? 0 : 1); }
  /// A copy unless rows are contiguous, which cuBLASLt requires.
  Operand with_contiguous_rows() const {
    TERATRON_ASSERT(matrix.dim() == 2, "GEMM operand of {} dimensions", matrix.dim());
    const bool contiguous = matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1);
    return contiguous ? *this : Operand{matrix.clone(at::MemoryFormat::Contiguous), mn_major};
  }
  cuda::GemmOperand raw() const {
    return {
        .data = address(matrix), .type = dtype_of(matrix), .stride = matrix.stride(0), .mn_major = mn_major};
  }
};

struct GemmAddends {
  at::Tensor matrix, bias;
};

/// alpha and beta on the device; undefined: alpha is 1.
at::Tensor alpha_beta_of(const at::Tensor& alpha, const GemmAddends& addends) {
  if (!alpha.defined()) return {};
  TERATRON_ASSERT(alpha.scalar_type() == at::kFloat && alpha.numel() == 1, "alpha is {}", alpha.toString());
  return at::cat({alpha.view({1}), at::full({1}, addends.matrix.defined() ? 1.0 : 0.0, alpha.options())});
}

/// out = (alpha [1]) a b^T (+ addends.matrix) (+ addends.bias), operands of one dtype; each in parentheses
/// may be undefined.
void gemm(const at::Tensor& out, const std::array<Operand, 2>& operands, const GemmAddends& addends,
          const at::Tensor& alpha = {}) {
  const Operand a = operands[0].with_contiguous_rows(), b = operands[1].with_contiguous_rows();
  TERATRON_ASSERT(b.matrix.device() == a.matrix.device() &&
                      b.matrix.scalar_type() == a.matrix.scalar_type() && b.k() == a.k() &&
                      out.device() == a.matrix.device() && out.is_contiguous() &&
                      out.numel() == a.rows() * b.rows(),
                  "product of {} [{}, {}] by {} [{}, {}] into {} elements", a.matrix.toString(), a.rows(),
                  a.k(), b.matrix.toString(), b.k(), b.rows(), out.numel());
  if (addends.bias.defined()) require_like(addends.bias, out, b.rows(), "bias");
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, out.options().dtype(at::kByte));
  const at::Tensor alpha_beta = alpha_beta_of(alpha, addends);
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
              .alpha_beta = static_cast<const float*>(address(alpha_beta))},
             current_stream(out));
}

at::Tensor copy_if_defined(const at::Tensor& out, const at::Tensor& result) {
  return out.defined() ? out.copy_(result) : result;
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, at::Tensor y) {
  if (y.defined()) require_like(y, x, x.size(0) * w.size(0), "y");
  if (!use_cublaslt(x, w)) {
    if (cpu::use_linear(x, w, bias)) return copy_if_defined(y, cpu::linear(x, w, bias));
    if (!y.defined()) return at::linear(x, w, bias.defined() ? std::optional(bias) : std::nullopt);
    return bias.defined() ? at::addmm_out(y, bias, x, w.t()) : at::mm_out(y, x, w.t());
  }
  if (!y.defined()) y = at::empty({x.size(0), w.size(0)}, x.options());
  if (use_skinny_gemm(x, w)) {
    cuda::skinny_gemm(skinny_args(y, x, w, bias), current_stream(x));
  } else {
    gemm(y, {Operand{x}, Operand{w}}, {.matrix = {}, .bias = bias});
  }
  return y;
}

namespace {

/// For GEMMs without alpha.
at::Tensor scaled(const OutputGradient& dy) {
  return dy.scale.defined() ? (dy.values * dy.scale).to(dy.values.scalar_type()) : dy.values;
}

}  // namespace

at::Tensor linear_input_gradient(const OutputGradient& gradient, const at::Tensor& w, at::Tensor dx) {
  const at::Tensor& values = gradient.values;
  const bool cublaslt = use_cublaslt(values, w);
  const at::Tensor dy = cublaslt ? values : scaled(gradient);
  if (dx.defined()) require_like(dx, dy, dy.size(0) * w.size(1), "dx");
  if (!cublaslt) {
    if (cpu::use_linear(dy, w)) return copy_if_defined(dx, cpu::linear(dy, w.t(), {}));
    return dx.defined() ? at::mm_out(dx, dy, w) : at::matmul(dy, w);
  }
  if (!dx.defined()) dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  gemm(dx, {Operand{dy}, Operand{w, true}}, {}, gradient.scale);
  return dx;
}

void linear_weight_gradient_(at::Tensor sum, const OutputGradient& gradient, const at::Tensor& x, bool add) {
  const at::ScalarType type = sum.scalar_type();
  const at::Tensor& values = gradient.values;
  const bool same_dtype =
      values.scalar_type() == x.scalar_type() && (type == at::kFloat || type == x.scalar_type());
  if (!use_cublaslt(values, x) || !same_dtype) {
    const at::Tensor dy = scaled(gradient);
    if (cpu::use_weight_gradient(sum, dy, x)) return cpu::weight_gradient(sum, dy, x, add);
    sum.addmm_(dy.t().to(type), x.to(type), /*beta=*/add ? 1.0 : 0.0);
    return;
  }
  gemm(sum, {Operand{values, true}, Operand{x, true}}, {.matrix = add ? sum : at::Tensor(), .bias = {}},
       gradient.scale);
}

void add_product_(const at::Tensor& y, const AddedProduct& added) {
  const auto& [x, w] = added;
  if (!added.defined()) return;
  require_like(y, x, x.size(0) * w.size(0), "y");
  if (!use_cublaslt(x, w)) {
    at::Tensor sum = y;
    sum.addmm_(x, w.t());
    return;
  }
  const Operand right = w.is_contiguous() ? Operand{w} : Operand{w.t(), true};
  gemm(y, {Operand{x}, right}, {.matrix = y, .bias = {}});
}

bool normalizes_rows(const NormedRows& rows, const at::Tensor& w) {
  const auto& [x, parameters, options] = rows;
  const auto fits = [&](const at::Tensor& parameter) {
    return !parameter.defined() ||
           (parameter.scalar_type() == x.scalar_type() && parameter.is_contiguous() && is_aligned(parameter));
  };
  return use_skinny_gemm(x, w) && fits(parameters.weight) && fits(parameters.bias) &&
         cuda::skinny_gemm_norm_bytes(x.size(0), x.size(1)) <= cuda::most_skinny_gemm_norm_bytes;
}

namespace {

cuda::SkinnyGemmArgs normed_args(const at::Tensor& out, const NormedRows& rows, const at::Tensor& w,
                                 const at::Tensor& bias) {
  const auto& [x, parameters, options] = rows;
  TERATRON_ASSERT(normalizes_rows(rows, w), "no GEMM normalizes {} rows", x.size(0));
  require_like(parameters.weight, x, x.size(1), "norm weight");
  if (parameters.bias.defined()) require_like(parameters.bias, x, x.size(1), "norm bias");
  cuda::SkinnyGemmArgs args = skinny_args(out, x, w, bias);
  args.norm = {.weight = address(parameters.weight),
               .bias = address(parameters.bias),
               .eps = static_cast<float>(options.eps),
               .rms = options.kind == NormKind::rms,
               .zero_centered = options.zero_centered};
  return args;
}

}  // namespace

at::Tensor linear_normed(const NormedRows& rows, const at::Tensor& w, const at::Tensor& bias) {
  const at::Tensor y = at::empty({rows.x.size(0), w.size(0)}, rows.x.options());
  cuda::skinny_gemm(normed_args(y, rows, w, bias), current_stream(y));
  return y;
}

at::Tensor linear_normed_activation(const NormedRows& rows, const at::Tensor& w, const at::Tensor& bias,
                                    Activation activation) {
  TERATRON_ASSERT(w.size(0) % parts_of(activation) == 0, "gate|up of odd width {}", w.size(0));
  const at::Tensor y = at::empty({rows.x.size(0), w.size(0) / parts_of(activation)}, rows.x.options());
  cuda::SkinnyGemmArgs args = normed_args(y, rows, w, bias);
  args.activated = true;
  args.activation = activation;
  cuda::skinny_gemm(args, current_stream(y));
  return y;
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual) {
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  require_like(residual, x, x.size(0) * w.size(0), "residual");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  if (!use_cublaslt(x, w)) return bias_dropout_add(linear_forward(x, w, {}), bias, residual, {});
  const at::Tensor out = at::empty_like(residual);
  if (use_skinny_gemm(x, w)) {
    cuda::SkinnyGemmArgs args = skinny_args(out, x, w, bias);
    args.addend = address(residual);
    cuda::skinny_gemm(args, current_stream(x));
  } else {
    gemm(out, {Operand{x}, Operand{w}}, {.matrix = residual, .bias = bias});
  }
  return out;
}

namespace {

/// Whether dtype, device, alignment and sizes suit the fused kernels.
bool fits_fused_gemm(const cuda::FusedGemmShape& shape, std::initializer_list<at::Tensor> tensors) {
  const bool fit = std::ranges::all_of(tensors, [](const at::Tensor& x) {
    return !x.defined() || (x.is_cuda() && x.scalar_type() == at::kBFloat16 && is_aligned(x));
  });
  return fit && shape.width % 8 == 0 && shape.k % 8 == 0 && shape.added_k % 8 == 0;
}

bool use_fused_activation(const cuda::FusedGemmShape& shape, std::initializer_list<at::Tensor> tensors) {
  return fits_fused_gemm(shape, tensors) && cuda::has_gemm_activation(shape);
}

int64_t added_k(const AddedProduct& added) {
  return added.defined() ? added.x.size(1) : 0;
}

/// w of the added product, [O, R] or its transpose, as the kernel reads it.
cuda::AddedOperands raw(const AddedProduct& added) {
  return {.x = address(added.x), .w = address(added.w)};
}

/// The contiguous matrix that w is the transpose of.
AddedProduct transposed(const AddedProduct& added) {
  return added.defined() ? AddedProduct{added.x, added.w.t()} : added;
}

void require_added(const AddedProduct& added, const at::Tensor& x, int64_t width) {
  if (!added.defined()) return;
  require_like(added.x, x, x.size(0) * added.x.size(1), "x of the added product");
  require_like(added.w, x, added.x.size(1) * width, "w of the added product");
}

cuda::GemmRope raw(const QkvRope& rope) {
  const auto& [table, style, positions] = rope.rotation;
  return {.cos = static_cast<const float*>(address(table.cos)),
          .sin = static_cast<const float*>(address(table.sin)),
          .positions = positions.const_data_ptr<int64_t>(),
          .stride_s = positions.stride(0),
          .stride_b = positions.stride(1),
          .batch = static_cast<int>(positions.size(1)),
          .per_group = static_cast<int>(rope.per_group),
          .channels = static_cast<int>(rope.channels)};
}

}  // namespace

at::Tensor linear_rope(const LinearSum& sum, const QkvRope& rope) {
  const auto& [x, w, bias, added] = sum;
  const cuda::FusedGemmShape shape{.rows = x.size(0),
                                   .width = w.size(0),
                                   .k = x.size(1),
                                   .activation = Activation::relu,
                                   .added_k = added_k(added)};
  const auto& [table, style, positions] = rope.rotation;
  const bool fusable = style == RopeStyle::half && 2 * table.cos.size(1) == rope.channels &&
                       is_aligned(table.cos) && is_aligned(table.sin);
  if (!fusable || !x.is_contiguous() || !fits_fused_gemm(shape, {x, w, bias, added.x, added.w}) ||
      !cuda::has_gemm_rope(shape, rope.channels)) {
    const at::Tensor y = linear_forward(x, w, bias);
    add_product_(y, added);
    apply_rope_(y, rope);
    return y;
  }
  require_like(w, x, shape.width * shape.k, "w");
  if (bias.defined()) require_like(bias, x, shape.width, "bias");
  require_added(added, x, shape.width);
  const at::Tensor y = at::empty({shape.rows, shape.width}, x.options());
  require_rotation(queries_and_keys(y, rope), table, positions);
  cuda::gemm_rope(shape,
                  {.x = address(x),
                   .w = address(w),
                   .bias = address(bias),
                   .out = address(y),
                   .rope = raw(rope),
                   .added = raw(added)},
                  current_stream(x));
  return y;
}

void linear_activation(const ActivationOutputs& outputs, const LinearSum& sum, Activation activation) {
  const auto& [y, z] = outputs;
  const auto& [x, w, bias, added] = sum;
  require_float(x, "x");
  require_like(w, x, w.size(0) * x.size(1), "w");
  if (bias.defined()) require_like(bias, x, w.size(0), "bias");
  TERATRON_ASSERT(w.size(0) % parts_of(activation) == 0, "gate|up of odd width {}", w.size(0));
  const cuda::FusedGemmShape shape{.rows = x.size(0),
                                   .width = w.size(0) / parts_of(activation),
                                   .k = x.size(1),
                                   .activation = activation,
                                   .added_k = added_k(added)};
  require_like(y, x, shape.rows * shape.width, "y");
  if (z.defined()) require_like(z, x, shape.rows * w.size(0), "z");
  require_added(added, x, w.size(0));
  if (!z.defined() && !added.defined() && use_skinny_gemm(x, w)) {
    cuda::SkinnyGemmArgs args = skinny_args(y, x, w, bias);
    args.activated = true;
    args.activation = activation;
    return cuda::skinny_gemm(args, current_stream(x));
  }
  if (!use_fused_activation(shape, {x, w, bias, y, z, added.x, added.w})) {
    const at::Tensor product = linear_forward(x, w, bias, z);
    add_product_(product, added);
    activation_forward(product, {}, activation, y);
    return;
  }
  cuda::gemm_activation_forward(shape,
                                {.x = address(x),
                                 .w = address(w),
                                 .bias = address(bias),
                                 .z = address(z),
                                 .out = address(y),
                                 .added = raw(added)},
                                current_stream(x));
}

ActivationGradients linear_activation_backward(const ActivationGradOutputs& outputs,
                                               const OutputProduct& product, const at::Tensor& z,
                                               Activation activation) {
  const auto& [dy, w, added] = product;
  require_float(dy, "dy");
  require_like(w, dy, dy.size(1) * w.size(1), "w");
  require_like(z, dy, dy.size(0) * w.size(1) * parts_of(activation), "z");
  if (outputs.dx.defined()) require_like(outputs.dx, z, z.numel(), "dz");
  const cuda::FusedGemmShape shape{.rows = dy.size(0),
                                   .width = w.size(1),
                                   .k = dy.size(1),
                                   .activation = activation,
                                   .added_k = added_k(added)};
  const AddedProduct stored = transposed(added);
  require_added(stored, dy, shape.width);
  if (!use_fused_activation(shape, {dy, w, z, outputs.dx, added.x, added.w})) {
    const at::Tensor da = linear_input_gradient(dy, w);
    add_product_(da, added);
    return activation_backward(da, z, {}, activation, outputs);
  }
  const at::Tensor dz = outputs.dx.defined() ? outputs.dx : at::empty_like(z);
  ColumnSum dbias(outputs.dbias, shape.width * parts_of(activation), z.options().dtype(at::kFloat));
  cuda::gemm_activation_backward(shape,
                                 {.dy = address(dy),
                                  .w = address(w),
                                  .z = address(z),
                                  .dz = address(dz),
                                  .dbias = dbias.reduction(cuda::gemm_activation_workspace_rows(shape)),
                                  .added = raw(stored)},
                                 current_stream(dy));
  return {dz, dbias.out()};
}

}  // namespace teratron
