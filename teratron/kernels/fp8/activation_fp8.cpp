#include "teratron/kernels/fp8/activation_fp8.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {
namespace {

cuda::ActivationShape fp8_shape_of(const at::Tensor& x, Activation activation) {
  return {.rows = x.size(0),
          .width = x.size(1) / parts_of(activation),
          .dtype = dtype_of(x),
          .activation = activation};
}

}  // namespace

Fp8Matrix activation_forward_fp8(const at::Tensor& x, Activation activation, const Fp8Cast& cast) {
  if (!can_fuse_fp8_cast(x, parts_of(activation))) {
    return cast_to_fp8(activation_forward(x, at::Tensor(), activation), cast);
  }
  const cuda::ActivationShape shape = fp8_shape_of(x, activation);
  const auto [matrix, output] = allocate_fp8(x, shape.width, cast);
  cuda::activation_forward_fp8({.shape = shape, .to = output, .x = address(x), .dy = nullptr},
                               current_stream(x));
  return matrix;
}

Fp8ActivationGradients activation_backward_fp8(const at::Tensor& dy, const at::Tensor& x,
                                               Activation activation, const Fp8Cast& cast,
                                               const std::optional<GradSink>& dbias_sink) {
  if (!can_fuse_fp8_cast(x, parts_of(activation)) || !is_aligned(dy)) {
    const ActivationGradients unfused =
        activation_backward(dy, x, at::Tensor(), activation, {.dbias = dbias_sink});
    return {cast_to_fp8(unfused.dx, cast), unfused.dbias};
  }
  const cuda::ActivationShape shape = fp8_shape_of(x, activation);
  require_like(dy, x, shape.rows * shape.width, "dy");
  const auto [matrix, output] = allocate_fp8(x, x.size(1), cast);
  ColumnSum dbias(dbias_sink, x.size(1), x.options().dtype(at::kFloat));
  cuda::activation_backward_fp8({.shape = shape,
                                 .to = output,
                                 .x = address(x),
                                 .dy = address(dy),
                                 .dbias = dbias.reduction(cuda::activation_fp8_workspace_rows(shape))},
                                current_stream(x));
  return {.dx = matrix, .dbias = dbias.out()};
}

}  // namespace teratron
