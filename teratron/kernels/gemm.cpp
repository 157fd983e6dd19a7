#include "teratron/kernels/gemm.h"

#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/dropout.h"
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

}  // namespace teratron
