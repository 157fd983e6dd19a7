#include "teratron/kernels/fp8/fp8.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/gemm/launchers.h"

namespace teratron {
namespace {

constexpr int64_t tile_bytes = 16;      // alignment that the tensor cores require
constexpr int64_t group_columns = 128;  // of a transpose, of which those of a group are a multiple

at::ScalarType scalar_type(Fp8Format format) {
  return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Dtype fp8_type_of(const at::Tensor& values) {
  return values.scalar_type() == at::kFloat8_e5m2 ? Dtype::f8_e5m2 : Dtype::f8_e4m3;
}

float* floats(const at::Tensor& x) {
  return static_cast<float*>(address(x));
}

void check_matrix(const at::Tensor& x, const Fp8Groups* groups) {
  require_float(x, "x");
  TERATRON_ASSERT(x.dim() == 2 && (groups || x.size(0) % tile_bytes == 0) && x.size(1) % tile_bytes == 0,
                  "[{}] is not a matrix whose sizes are multiples of {}", fmt::join(x.sizes(), ", "),
                  tile_bytes);
  TERATRON_ASSERT(x.scalar_type() != at::kDouble, "cannot cast fp64 to FP8");
  TERATRON_ASSERT(is_aligned(x), "unaligned matrix");
}

at::Tensor largest_magnitude(const at::Tensor& x) {
  return x.numel() == 0 ? at::zeros({1}) : x.to(at::kFloat).abs().amax().view({1});
}

// On the device: the number of rows of all groups.
const int32_t* last_end(const Fp8Groups& groups) {
  return groups.ends_G.const_data_ptr<int32_t>() + groups.ends_G.size(0) - 1;
}

// maximum() propagates NaN, fmax() does not.
void update_amax_(const at::Tensor& amax, const at::Tensor& candidate) {
  amax.copy_(at::maximum(amax, candidate));
}

// The rows of all groups.
at::Tensor grouped_rows(const at::Tensor& x, const Fp8Groups* groups) {
  return groups ? x.narrow(0, 0, groups->ends_G[-1].item<int64_t>()) : x;
}

// [C, R], or as Fp8Groups says.
at::Tensor transpose_cpu(const at::Tensor& q, const Fp8Groups* groups) {
  if (!groups) return q.t().contiguous();
  const at::Tensor columns = at::zeros({q.size(1), groups->columns}, q.options());
  for (const Fp8Group& group : read_groups(*groups))
    columns.narrow(1, group.padded_begin, group.rows).copy_(q.narrow(0, group.begin, group.rows).t());
  return columns;
}

Fp8Matrix cast_cpu(const at::Tensor& x, const Fp8Cast& cast) {
  if (cast.amax.defined()) update_amax_(cast.amax, largest_magnitude(grouped_rows(x, cast.groups)));
  const double most = largest(cast.format);
  const at::Tensor q = (x.to(at::kFloat) * cast.scale.scale).clamp_(-most, most).to(scalar_type(cast.format));
  return {.rows = cast.rows ? q : at::Tensor(),
          .columns = cast.columns ? transpose_cpu(q, cast.groups) : at::Tensor(),
          .scale_inv = cast.scale.scale_inv};
}

at::Tensor matmul_cpu(const Fp8Product& product) {
  const at::Tensor sum = at::matmul(product.a.values.to(at::kFloat), product.b.values.to(at::kFloat).t());
  return sum * (product.a.scale_inv * product.b.scale_inv);
}

/// out = product (+ addend) (+ bias). The addend may be `out` itself.
struct Addends {
  at::Tensor bias;
  at::Tensor addend;
};

void gemm(const Fp8Product& product, const Addends& addends, const at::Tensor& out) {
  const at::Tensor workspace = at::empty({cuda::gemm_workspace}, out.options().dtype(at::kByte));
  const auto operand = [](const Fp8Operand& x) {
    return cuda::GemmOperand{.data = address(x.values),
                             .type = fp8_type_of(x.values),
                             .stride = x.values.stride(0),
                             .scale_inv = floats(x.scale_inv)};
  };
  cuda::gemm({.m = product.a.values.size(0),
              .n = product.b.values.size(0),
              .k = product.a.values.size(1),
              .a = operand(product.a),
              .b = operand(product.b),
              .addend = address(addends.addend),
              .bias = address(addends.bias),
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
  TERATRON_ASSERT(a.stride(1) == 1 && b.stride(1) == 1, "operands are not row-major");
  for (const at::Tensor& scale_inv : {product.a.scale_inv, product.b.scale_inv}) {
    TERATRON_ASSERT(!scale_inv.is_cuda() || is_aligned(scale_inv), "unaligned scale");
  }
}

}  // namespace

int64_t fp8_columns(int64_t rows, int64_t groups) {
  return (rows + groups * (group_columns - 1)) / group_columns * group_columns;
}

Fp8Groups make_fp8_groups(const at::Tensor& ends_G, int64_t rows) {
  const int64_t groups = ends_G.size(0);
  const at::Tensor begins = at::cat({at::zeros({1}, ends_G.options()), ends_G.narrow(0, 0, groups - 1)});
  const at::Tensor steps = (ends_G - begins + group_columns - 1).div_(group_columns, "floor");
  return {.ends_G = ends_G,
          .padded_ends_G = steps.mul_(group_columns).cumsum(0, at::kInt),
          .columns = fp8_columns(rows, groups)};
}

std::vector<Fp8Group> read_groups(const Fp8Groups& groups) {
  const at::Tensor ends = at::stack({groups.ends_G, groups.padded_ends_G}).to(at::kCPU, at::kLong);
  const int64_t count = ends.size(1);
  const auto* const end = ends.const_data_ptr<int64_t>();
  std::vector<Fp8Group> all;
  int64_t begin = 0, padded_begin = 0;
  for (int64_t g = 0; g < count; ++g) {
    all.push_back({begin, end[g] - begin, padded_begin, end[count + g] - padded_begin});
    begin = end[g];
    padded_begin = end[count + g];
  }
  return all;
}

Fp8Scale compute_fp8_scale(const at::Tensor& x, Fp8Format format, const Fp8Groups* groups) {
  check_matrix(x, groups);
  if (x.is_cuda()) {
    const at::TensorOptions fp32 = x.options().dtype(at::kFloat);
    const at::Tensor amax = at::zeros({1}, fp32);
    const Fp8Scale scale{at::empty({1}, fp32), at::empty({1}, fp32)};
    cuda::compute_fp8_scale({.count = x.numel(),
                             .dtype = dtype_of(x),
                             .largest = static_cast<float>(largest(format)),
                             .x = address(x),
                             .amax = floats(amax),
                             .scale = floats(scale.scale),
                             .scale_inv = floats(scale.scale_inv),
                             .rows = groups ? last_end(*groups) : nullptr,
                             .columns = x.size(1)},
                            current_stream(x));
    return scale;
  }
  const at::Tensor amax = largest_magnitude(grouped_rows(x, groups));
  const at::Tensor exact = at::full_like(amax, largest(format)).div_(amax).clamp_max_(largest_fp8_scale);
  const at::Tensor scale = at::where(amax.isfinite().logical_and(amax > 0), exact, at::ones_like(exact));
  return {scale, scale.reciprocal()};
}

cuda::Fp8RowGroups row_groups(const Fp8Groups& groups) {
  return {.ends = groups.ends_G.const_data_ptr<int32_t>(),
          .padded_ends = groups.padded_ends_G.const_data_ptr<int32_t>(),
          .count = groups.ends_G.size(0)};
}

bool can_fuse_fp8_cast(const at::Tensor& x, int64_t parts) {
  return x.is_cuda() && is_half(x.scalar_type()) && x.dim() == 2 && x.numel() > 0 && x.is_contiguous() &&
         is_aligned(x) && x.size(0) % tile_bytes == 0 && x.size(1) % (tile_bytes * parts) == 0;
}

Fp8Allocation allocate_fp8(const at::Tensor& x, int64_t columns, const Fp8Cast& cast) {
  const int64_t rows = x.size(0), transposed = cast.groups ? cast.groups->columns : rows;
  const at::TensorOptions fp8 = x.options().dtype(scalar_type(cast.format));
  Fp8Matrix matrix{.rows = cast.rows ? at::empty({rows, columns}, fp8) : at::Tensor(),
                   .columns = cast.columns ? at::empty({columns, transposed}, fp8) : at::Tensor(),
                   .scale_inv = cast.scale.scale_inv};
  const cuda::Fp8Output output{.rows = transposed,
                               .columns = columns,
                               .format = cast.format,
                               .scale = floats(cast.scale.scale),
                               .amax = floats(cast.amax),
                               .out = address(matrix.rows),
                               .transposed = address(matrix.columns)};
  return {std::move(matrix), output};
}

Fp8Matrix cast_to_fp8(const at::Tensor& x, const Fp8Cast& cast) {
  check_matrix(x, cast.groups);
  if (!x.is_cuda()) return cast_cpu(x, cast);
  const auto [matrix, output] = allocate_fp8(x, x.size(1), cast);
  if (x.numel() > 0) {
    cuda::fp8_cast({.to = output,
                    .dtype = dtype_of(x),
                    .x = address(x),
                    .groups = cast.groups ? row_groups(*cast.groups) : cuda::Fp8RowGroups{}},
                   current_stream(x));
  }
  return matrix;
}

at::Tensor fp8_matmul(const Fp8Product& product, const at::Tensor& bias, at::ScalarType type) {
  check_product(product);
  if (!product.a.values.is_cuda()) {
    const at::Tensor out = matmul_cpu(product);
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
    const at::Tensor out = matmul_cpu(product) + residual.to(at::kFloat);
    return (bias.defined() ? out + bias.to(at::kFloat) : out).to(residual.scalar_type());
  }
  const at::Tensor out = at::empty_like(residual);
  gemm(product, {.bias = bias, .addend = residual}, out);
  return out;
}

void fp8_matmul_out(const at::Tensor& out, const Fp8Product& product) {
  check_product(product);
  if (!out.is_cuda()) {
    out.copy_(matmul_cpu(product));
    return;
  }
  gemm(product, {}, out);
}

void fp8_matmul_add_(const at::Tensor& sum, const Fp8Product& product) {
  check_product(product);
  if (!sum.is_cuda()) {
    sum.add_(matmul_cpu(product));
    return;
  }
  gemm(product, {.addend = sum}, sum);
}

}  // namespace teratron
