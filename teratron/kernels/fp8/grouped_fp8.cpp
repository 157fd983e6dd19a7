#include "teratron/kernels/fp8/grouped_fp8.h"

#include <fmt/ranges.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/fp8/launchers.h"

namespace teratron {

namespace {

Fp8Format format_of(const at::Tensor& values) {
  return values.scalar_type() == at::kFloat8_e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
}

void require_values(const at::Tensor& x, int64_t rows, int64_t columns) {
  TERATRON_ASSERT(x.dim() == 2 && x.size(0) == rows && x.size(1) == columns && x.is_contiguous(),
                  "FP8 matrix [{}], expected [{}, {}]", fmt::join(x.sizes(), ", "), rows, columns);
}

bool has_kernel(const at::Tensor& x, const Fp8Groups& groups) {
  return x.is_cuda() && groups.ends_G.size(0) <= cuda::fp8_max_groups && cuda::has_fp8_grouped_gemm();
}

struct GroupedProduct {
  cuda::Fp8GroupedProduct kind;
  Fp8Operand a, b;  // whole
};

cuda::Fp8GroupedGemmArgs kernel_args(const GroupedProduct& product, const Fp8Groups& groups) {
  const auto& [kind, a, b] = product;
  const auto address_of = [](const at::Tensor& scale) { return scale.const_data_ptr<float>(); };
  return {.product = kind,
          .groups = row_groups(groups),
          .rows = a.values.size(0),
          .n = 0,
          .k = a.values.size(1),
          .a_format = format_of(a.values),
          .a = address(a.values),
          .b = address(b.values),
          .a_scale_inv = address_of(a.scale_inv),
          .b_scale_inv = address_of(b.scale_inv),
          .out = nullptr};
}

// Rows by the weights of their groups, of which group g has `weight(g)`.
template <typename Weight>
at::Tensor multiply_rows(const GroupedProduct& product, const Fp8Groups& groups, const at::Tensor& out,
                         const Weight& weight) {
  const auto& [kind, a, b] = product;
  if (out.numel() == 0) return out;
  if (has_kernel(a.values, groups) && out.scalar_type() == at::kBFloat16) {
    cuda::Fp8GroupedGemmArgs args = kernel_args(product, groups);
    args.n = out.size(1);
    args.out = address(out);
    cuda::fp8_grouped_gemm(args, current_stream(out));
    return out;
  }
  int64_t index = 0;
  for (const Fp8Group& group : read_groups(groups)) {
    const at::Tensor w = weight(index++);
    if (group.rows == 0) continue;
    const Fp8Product one{.a = {a.values.narrow(0, group.begin, group.rows), a.scale_inv},
                         .b = {w, b.scale_inv},
                         .fast_accumulation = kind == cuda::Fp8GroupedProduct::forward};
    out.narrow(0, group.begin, group.rows).copy_(fp8_matmul(one, {}, out.scalar_type()));
  }
  return out;
}

void multiply_group(const at::Tensor& sum, const Fp8Product& product, bool add) {
  if (product.a.values.size(1) == 0) {
    if (!add) sum.zero_();
  } else if (add) {
    fp8_matmul_add_(sum, product);
  } else {
    fp8_matmul_out(sum, product);
  }
}

}  // namespace

at::Tensor fp8_grouped_forward(const Fp8Matrix& x, const Fp8Matrix& w, const Fp8Groups& groups,
                               at::ScalarType type) {
  const int64_t out = w.rows.size(0) / groups.ends_G.size(0), in = w.rows.size(1);
  require_values(x.rows, x.rows.size(0), in);
  return multiply_rows({cuda::Fp8GroupedProduct::forward, {x.rows, x.scale_inv}, {w.rows, w.scale_inv}},
                       groups, at::empty({x.rows.size(0), out}, x.rows.options().dtype(type)),
                       [&](int64_t group) { return w.rows.narrow(0, group * out, out); });
}

at::Tensor fp8_grouped_input_gradient(const Fp8Matrix& dy, const Fp8Matrix& w, const Fp8Groups& groups,
                                      at::ScalarType type) {
  const int64_t out = w.columns.size(1) / groups.ends_G.size(0), in = w.columns.size(0);
  require_values(dy.rows, dy.rows.size(0), out);
  return multiply_rows(
      {cuda::Fp8GroupedProduct::input_gradient, {dy.rows, dy.scale_inv}, {w.columns, w.scale_inv}}, groups,
      at::empty({dy.rows.size(0), in}, dy.rows.options().dtype(type)),
      [&](int64_t group) { return w.columns.narrow(1, group * out, out); });
}

void fp8_grouped_weight_gradient_(at::Tensor sum_GOI, const Fp8Matrix& dy, const Fp8Matrix& x,
                                  const Fp8Groups& groups, bool add) {
  require_values(dy.columns, sum_GOI.size(1), groups.columns);
  require_values(x.columns, sum_GOI.size(2), groups.columns);
  TERATRON_ASSERT(sum_GOI.scalar_type() == at::kFloat && sum_GOI.select(0, 0).is_contiguous(),
                  "gradients of weights {} [{}]", sum_GOI.toString(), fmt::join(sum_GOI.sizes(), ", "));
  const GroupedProduct product{
      cuda::Fp8GroupedProduct::weight_gradient, {dy.columns, dy.scale_inv}, {x.columns, x.scale_inv}};
  if (groups.columns > 0 && has_kernel(dy.columns, groups)) {
    cuda::Fp8GroupedGemmArgs args = kernel_args(product, groups);
    args.n = sum_GOI.size(2);
    args.out = address(sum_GOI);
    args.out_stride = sum_GOI.stride(0);
    args.add = add;
    return cuda::fp8_grouped_gemm(args, current_stream(sum_GOI));
  }
  int64_t index = 0;
  for (const Fp8Group& group : read_groups(groups)) {
    const auto columns = [&](const Fp8Operand& x) {
      return Fp8Operand{x.values.narrow(1, group.padded_begin, group.padded_rows), x.scale_inv};
    };
    multiply_group(sum_GOI.select(0, index++), {.a = columns(product.a), .b = columns(product.b)}, add);
  }
}

}  // namespace teratron
