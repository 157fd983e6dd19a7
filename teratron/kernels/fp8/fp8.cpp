#include "teratron/kernels/fp8/fp8.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/gemm/gemm_cuda.h"

namespace teratron {
namespace {

constexpr int64_t granule = 16;  // what the tensor cores take at once, in bytes

at::ScalarType scalar_type(Fp8Format format) {
  return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Dtype fp8_type_of(const at::Tensor& values) {
  return values.scalar_type() == at::kFloat8_e5m2 ? Dtype::f8_e5m2 : Dtype::f8_e4m3;
}

float* floats(const at::Tensor& x) {
  return static_cast<float*>(address(x));
}

void check_matrix(const at::Tensor& x) {
  require_float(x, "x");
  TERATRON_ASSERT(x.dim() == 2 && x.size(0) % granule == 0 && x.size(1) % granule == 0,
                  "[{}] is no matrix of multiples of {}", fmt::join(x.sizes(), ", "), granule);
  TERATRON_ASSERT(x.scalar_type() != at::kDouble, "no FP8 from fp64");
  TERATRON_ASSERT(is_aligned(x), "unaligned matrix");
}

at::Tensor largest_magnitude(const at::Tensor& x) {
  return x.numel() == 0 ? at::zeros({1}) : x.to(at::kFloat).abs().amax().view({1});
}

// fmax would lose a NaN.
void raise_(const at::Tensor& amax, const at::Tensor& candidate) {
  amax.copy_(at::maximum(amax, candidate));
}

Fp8Matrix cast_on_cpu(const at::Tensor& x, const Fp8Cast& cast) {
  if (cast.amax.defined()) raise_(cast.amax, largest_magnitude(x));
  const double most = largest(cast.format);
  const at::Tensor q = (x.to(at::kFloat) * cast.scale.scale).clamp_(-most, most).to(scalar_type(cast.format));
  return {.rows = cast.rows ? q : at::Tensor(),
          .columns = cast.columns ? q.t().contiguous() : at::Tensor(),
          .inverse = cast.scale.inverse};
}

at::Tensor product_on_cpu(const Fp8Product& product) {
  const at::Tensor sum = at::matmul(product.a.values.to(at::kFloat), product.b.values.to(at::kFloat).t());
  return sum * (product.a.inverse * product.b.inverse);
}

/// What follows a product: out = product (+ addend) (+ bias). The addend may be `out` itself.
struct Following {
  at::Tensor bias;
  at::Tensor addend;
};

void gemm(const Fp8Product& product, const Following& following, const at::Tensor& out) {
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, out.options().dtype(at::kByte));
  const auto factor = [](const Fp8Operand& x) {
    return cuda::GemmFactor{.data = address(x.values),
                            .type = fp8_type_of(x.values),
                            .stride = x.values.size(1),
                            .inverse = floats(x.inverse)};
  };
  cuda::gemm({.m = product.a.values.size(0),
              .n = product.b.values.size(0),
              .k = product.a.values.size(1),
              .a = factor(product.a),
              .b = factor(product.b),
              .addend = address(following.addend),
              .bias = address(following.bias),
              .out = address(out),
              .out_type = dtype_of(out),
              .fast_accumulation = product.fast_accumulation,
              .workspace = address(workspace)},
             current_stream(out));
}

void check_product(const Fp8Product& product) {
  const at::Tensor &a = product.a.values, &b = product.b.values;
  TERATRON_ASSERT(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), "[{}] by [{}] transposed",
                  fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", "));
  TERATRON_ASSERT(a.is_contiguous() && b.is_contiguous(), "factors are not contiguous");
  for (const at::Tensor& inverse : {product.a.inverse, product.b.inverse}) {
    TERATRON_ASSERT(!inverse.is_cuda() || is_aligned(inverse), "unaligned scale");
  }
}

}  // namespace

Fp8Scale fp8_scale_of(const at::Tensor& x, Fp8Format format) {
  check_matrix(x);
  if (x.is_cuda()) {
    const at::TensorOptions fp32 = x.options().dtype(at::kFloat);
    const at::Tensor amax = at::zeros({1}, fp32);
    const Fp8Scale scale{at::empty({1}, fp32), at::empty({1}, fp32)};
    cuda::fp8_scale_of({.count = x.numel(),
                        .dtype = dtype_of(x),
                        .largest = static_cast<float>(largest(format)),
                        .x = address(x),
                        .amax = floats(amax),
                        .scale = floats(scale.scale),
                        .inverse = floats(scale.inverse)},
                       current_stream(x));
    return scale;
  }
  const at::Tensor amax = largest_magnitude(x);
  const at::Tensor wanted = at::full_like(amax, largest(format)).div_(amax).clamp_max_(largest_fp8_scale);
  const at::Tensor scale = at::where(amax.isfinite().logical_and(amax > 0), wanted, at::ones_like(wanted));
  return {scale, scale.reciprocal()};
}

bool casts_in_one_pass(const at::Tensor& x, int64_t parts) {
  return x.is_cuda() && is_half(x.scalar_type()) && x.dim() == 2 && x.numel() > 0 && x.is_contiguous() &&
         is_aligned(x) && x.size(0) % granule == 0 && x.size(1) % (granule * parts) == 0;
}

Fp8Allocation allocate_fp8(const at::Tensor& x, int64_t columns, const Fp8Cast& cast) {
  const int64_t rows = x.size(0);
  const at::TensorOptions fp8 = x.options().dtype(scalar_type(cast.format));
  Fp8Matrix matrix{.rows = cast.rows ? at::empty({rows, columns}, fp8) : at::Tensor(),
                   .columns = cast.columns ? at::empty({columns, rows}, fp8) : at::Tensor(),
                   .inverse = cast.scale.inverse};
  const cuda::Fp8Target target{.rows = rows,
                               .columns = columns,
                               .format = cast.format,
                               .scale = floats(cast.scale.scale),
                               .amax = floats(cast.amax),
                               .out = address(matrix.rows),
                               .transposed = address(matrix.columns)};
  return {std::move(matrix), target};
}

Fp8Matrix cast_to_fp8(const at::Tensor& x, const Fp8Cast& cast) {
  check_matrix(x);
  if (!x.is_cuda()) return cast_on_cpu(x, cast);
  const auto [matrix, target] = allocate_fp8(x, x.size(1), cast);
  if (x.numel() > 0) {
    cuda::fp8_cast({.to = target, .dtype = dtype_of(x), .x = address(x)}, current_stream(x));
  }
  return matrix;
}

at::Tensor fp8_matmul(const Fp8Product& product, const at::Tensor& bias, at::ScalarType type) {
  check_product(product);
  if (!product.a.values.is_cuda()) {
    const at::Tensor out = product_on_cpu(product);
    return (bias.defined() ? out + bias.to(at::kFloat) : out).to(type);
  }
  const at::Tensor out =
      at::empty({product.a.values.size(0), product.b.values.size(0)}, product.a.values.options().dtype(type));
  gemm(product, {.bias = bias}, out);
  return out;
}

at::Tensor fp8_matmul_add(const Fp8Product& product, const at::Tensor& bias, const at::Tensor& residual) {
  check_product(product);
  if (!product.a.values.is_cuda()) {
    const at::Tensor out = product_on_cpu(product) + residual.to(at::kFloat);
    return (bias.defined() ? out + bias.to(at::kFloat) : out).to(residual.scalar_type());
  }
  const at::Tensor out = at::empty_like(residual);
  gemm(product, {.bias = bias, .addend = residual}, out);
  return out;
}

void fp8_matmul_out(const at::Tensor& out, const Fp8Product& product) {
  check_product(product);
  if (!out.is_cuda()) {
    out.copy_(product_on_cpu(product));
    return;
  }
  gemm(product, {}, out);
}

void fp8_matmul_add_(const at::Tensor& sum, const Fp8Product& product) {
  check_product(product);
  if (!sum.is_cuda()) {
    sum.add_(product_on_cpu(product));
    return;
  }
  gemm(product, {.addend = sum}, sum);
}

}  // namespace teratron
