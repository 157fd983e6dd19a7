#include "teratron/kernels/grouped_gemm/grouped_gemm.h"

#include <fmt/ranges.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/grouped_gemm/launchers.h"

namespace teratron {

namespace {

bool is_stack(const at::Tensor& w_GOI) {
  return w_GOI.dim() == 3 && w_GOI.stride(2) == 1 && w_GOI.stride(1) == w_GOI.size(2) &&
         w_GOI.stride(0) >= w_GOI.size(1) * w_GOI.size(2) && w_GOI.stride(0) % 8 == 0 && is_aligned(w_GOI);
}

bool has_sizes(const at::Tensor& w_GOI) {
  return w_GOI.size(1) > 0 && w_GOI.size(2) > 0 && w_GOI.size(1) % 8 == 0 && w_GOI.size(2) % 8 == 0 &&
         w_GOI.size(0) > 0 && w_GOI.size(0) <= cuda::grouped_gemm_max_groups;
}

bool can_multiply(const at::Tensor& rows) {
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && rows.is_contiguous() && is_aligned(rows) &&
         cuda::has_grouped_gemm();
}

void require_rows(const at::Tensor& rows, int64_t width, const at::Tensor& ends_G) {
  TERATRON_ASSERT(rows.dim() == 2 && rows.size(1) == width && rows.is_contiguous() && is_aligned(rows) &&
                      rows.scalar_type() == at::kBFloat16 && rows.size(0) <= INT32_MAX,
                  "grouped GEMM of {} [{}], expected {} columns", rows.toString(),
                  fmt::join(rows.sizes(), ", "), width);
  TERATRON_ASSERT(
      ends_G.scalar_type() == at::kInt && ends_G.is_contiguous() && ends_G.device() == rows.device(),
      "ends of groups: {}", ends_G.toString());
}

cuda::RowGroups groups_of(const at::Tensor& rows, const at::Tensor& ends_G) {
  return {.ends = ends_G.const_data_ptr<int32_t>(), .count = ends_G.numel(), .rows = rows.size(0)};
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& w_GOI, const at::Tensor& ends_G, bool w_mn_major) {
  const int64_t k = w_GOI.size(w_mn_major ? 1 : 2), n = w_GOI.size(w_mn_major ? 2 : 1);
  require_rows(x, k, ends_G);
  TERATRON_ASSERT(is_stack(w_GOI) && has_sizes(w_GOI) && w_GOI.size(0) == ends_G.numel() &&
                      w_GOI.scalar_type() == at::kBFloat16,
                  "grouped GEMM with weights {} [{}]", w_GOI.toString(), fmt::join(w_GOI.sizes(), ", "));
  const at::Tensor out = at::empty({x.size(0), n}, x.options());
  if (x.size(0) == 0) return out;
  cuda::grouped_gemm({.groups = groups_of(x, ends_G),
                      .n = n,
                      .k = k,
                      .x = address(x),
                      .w = address(w_GOI),
                      .w_stride = w_GOI.stride(0),
                      .w_mn_major = w_mn_major,
                      .out = address(out)},
                     current_stream(x));
  return out;
}

}  // namespace

bool fits_grouped_gemm(const at::Tensor& rows, const at::Tensor& w_GOI) {
  return can_multiply(rows) && w_GOI.scalar_type() == at::kBFloat16 && is_stack(w_GOI) && has_sizes(w_GOI);
}

bool fits_weight_gradient(const at::Tensor& sum_GOI, const at::Tensor& dy_RO, const at::Tensor& x_RI) {
  return can_multiply(dy_RO) && can_multiply(x_RI) && sum_GOI.scalar_type() == at::kFloat &&
         is_stack(sum_GOI) && has_sizes(sum_GOI);
}

at::Tensor grouped_gemm_forward(const at::Tensor& x_RI, const at::Tensor& w_GOI, const at::Tensor& ends_G) {
  return multiply(x_RI, w_GOI, ends_G, /*w_mn_major=*/false);
}

at::Tensor grouped_gemm_input_gradient(const at::Tensor& dy_RO, const at::Tensor& w_GOI,
                                       const at::Tensor& ends_G) {
  return multiply(dy_RO, w_GOI, ends_G, /*w_mn_major=*/true);
}

void grouped_gemm_weight_gradient_(at::Tensor sum_GOI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                   const at::Tensor& ends_G, bool add) {
  require_rows(dy_RO, sum_GOI.size(1), ends_G);
  require_rows(x_RI, sum_GOI.size(2), ends_G);
  TERATRON_ASSERT(fits_weight_gradient(sum_GOI, dy_RO, x_RI) && sum_GOI.size(0) == ends_G.numel() &&
                      x_RI.size(0) == dy_RO.size(0),
                  "gradients of weights {} [{}] of {} and {} rows", sum_GOI.toString(),
                  fmt::join(sum_GOI.sizes(), ", "), dy_RO.size(0), x_RI.size(0));
  if (x_RI.size(0) == 0) {
    if (!add) sum_GOI.zero_();
    return;
  }
  cuda::grouped_weight_gradient({.groups = groups_of(x_RI, ends_G),
                                 .m = sum_GOI.size(1),
                                 .n = sum_GOI.size(2),
                                 .dy = address(dy_RO),
                                 .x = address(x_RI),
                                 .dw = sum_GOI.mutable_data_ptr<float>(),
                                 .dw_stride = sum_GOI.stride(0),
                                 .add = add},
                                current_stream(x_RI));
}

}  // namespace teratron
