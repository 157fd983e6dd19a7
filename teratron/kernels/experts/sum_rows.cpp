#include "teratron/kernels/experts/sum_rows.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/experts/launchers.h"

namespace teratron {

namespace {

// Slot by slot.
at::Tensor sum_rows_cpu(const at::Tensor& x_RH, const at::Tensor& rows_TK, const at::Tensor& kept_TK) {
  at::Tensor sum_TH =
      at::zeros({rows_TK.size(0), x_RH.size(1)}, x_RH.options().dtype(accumulation_type(x_RH)));
  for (int64_t k = 0; k < rows_TK.size(1); ++k) {
    at::Tensor rows_T = rows_TK.select(1, k);
    if (!kept_TK.defined()) {
      sum_TH.add_(x_RH.index_select(0, rows_T));
      continue;
    }
    const at::Tensor missing = kept_TK.select(1, k).logical_not();
    sum_TH.add_(
        x_RH.index_select(0, rows_T.clamp_max(x_RH.size(0) - 1)).masked_fill_(missing.unsqueeze(1), 0.0));
  }
  return sum_TH;
}

}  // namespace

void sum_rows_out(const at::Tensor& out_TH, const at::Tensor& x_RH, const at::Tensor& rows_TK,
                  const at::Tensor& kept_TK) {
  require_float(x_RH, "x");
  const at::ScalarType wide = accumulation_type(x_RH), dtype = out_TH.scalar_type();
  TERATRON_ASSERT(dtype == x_RH.scalar_type() || dtype == wide, "sums of {} as {}", x_RH.toString(),
                  c10::toString(dtype));
  TERATRON_ASSERT(out_TH.is_contiguous() && out_TH.size(0) == rows_TK.size(0) &&
                  out_TH.size(1) == x_RH.size(1) && out_TH.device() == x_RH.device());
  if (out_TH.numel() == 0) return;
  if (x_RH.size(0) == 0) {
    out_TH.zero_();
    return;
  }
  if (!x_RH.is_cuda()) {
    out_TH.copy_(sum_rows_cpu(x_RH, rows_TK, kept_TK));
    return;
  }
  TERATRON_ASSERT(rows_TK.scalar_type() == at::kLong && rows_TK.dim() == 2 && rows_TK.is_contiguous() &&
                  rows_TK.device() == x_RH.device() && rows_TK.size(0) <= INT32_MAX);
  TERATRON_ASSERT(!kept_TK.defined() ||
                  (kept_TK.scalar_type() == at::kBool && kept_TK.is_contiguous() &&
                   kept_TK.device() == x_RH.device() && kept_TK.sizes() == rows_TK.sizes()));
  cuda::sum_rows({.tokens = rows_TK.size(0),
                  .topk = rows_TK.size(1),
                  .width = x_RH.size(1),
                  .dtype = dtype_of(x_RH),
                  .wide = dtype == wide,
                  .x = address(x_RH),
                  .rows = rows_TK.const_data_ptr<int64_t>(),
                  .kept = kept_TK.defined() ? kept_TK.const_data_ptr<bool>() : nullptr,
                  .out = address(out_TH)},
                 current_stream(x_RH));
}

at::Tensor sum_rows(const at::Tensor& x_RH, const at::Tensor& rows_TK, const at::Tensor& kept_TK,
                    at::ScalarType dtype) {
  const at::Tensor out = at::empty({rows_TK.size(0), x_RH.size(1)}, x_RH.options().dtype(dtype));
  sum_rows_out(out, x_RH, rows_TK, kept_TK);
  return out;
}

}  // namespace teratron
