#include "teratron/kernels/experts/weighted_activation.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/experts/launchers.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

namespace {

void check_operands(const at::Tensor& z, const at::Tensor& p_R, Activation activation) {
  require_float(z, "z");
  TERATRON_ASSERT(z.dim() == 2 && z.size(1) % parts_of(activation) == 0 && z.size(0) <= INT32_MAX,
                  "activation of {} columns", z.size(-1));
  TERATRON_ASSERT(p_R.dim() == 1 && p_R.size(0) == z.size(0) && p_R.is_contiguous() &&
                      p_R.scalar_type() == accumulation_type(z) && p_R.device() == z.device(),
                  "probabilities {} of {} rows", p_R.toString(), z.size(0));
}

cuda::WeightedActivationArgs args_of(const at::Tensor& z, const at::Tensor& p_R, Activation activation) {
  return {.rows = z.size(0),
          .width = z.size(1) / parts_of(activation),
          .dtype = dtype_of(z),
          .activation = activation,
          .z = address(z),
          .p = address(p_R)};
}

at::Tensor like_output(const at::Tensor& z, Activation activation) {
  return at::empty({z.size(0), z.size(1) / parts_of(activation)}, z.options());
}

}  // namespace

at::Tensor weighted_activation_forward(const at::Tensor& z, const at::Tensor& p_R, Activation activation) {
  check_operands(z, p_R, activation);
  if (!z.is_cuda()) {
    return activation_forward(z, at::Tensor(), activation).mul_(p_R.to(z.scalar_type()).unsqueeze(1));
  }
  const at::Tensor h = like_output(z, activation);
  if (h.numel() == 0) return h;
  cuda::WeightedActivationArgs args = args_of(z, p_R, activation);
  args.h = address(h);
  cuda::weighted_activation_forward(args, current_stream(z));
  return h;
}

WeightedActivationGradients weighted_activation_backward(at::Tensor dh, const at::Tensor& z,
                                                         const at::Tensor& p_R, Activation activation) {
  check_operands(z, p_R, activation);
  require_like(dh, z, z.numel() / parts_of(activation), "dh");
  if (!z.is_cuda()) {
    const at::ScalarType wide = accumulation_type(z);
    const at::Tensor p = p_R.to(z.scalar_type()).unsqueeze(1);
    at::Tensor a = activation_forward(z, at::Tensor(), activation);
    const at::Tensor dp_R = (dh.to(wide) * a.to(wide)).sum(1);
    a.mul_(p);
    return {a, activation_backward(dh.mul_(p), z, at::Tensor(), activation).dx, dp_R};
  }
  const WeightedActivationGradients result{like_output(z, activation), at::empty_like(z),
                                           at::empty_like(p_R)};
  if (z.numel() == 0) {
    result.dp_R.zero_();
    return result;
  }
  cuda::WeightedActivationArgs args = args_of(z, p_R, activation);
  args.dh = address(dh);
  args.h = address(result.h);
  args.dz = address(result.dz);
  args.dp = address(result.dp_R);
  cuda::weighted_activation_backward(args, current_stream(z));
  return result;
}

}  // namespace teratron
