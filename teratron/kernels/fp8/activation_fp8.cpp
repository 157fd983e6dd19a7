#include "teratron/kernels/fp8/activation_fp8.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/activation_fp8_cuda.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {
namespace {

cuda::ActivationShape shape_of(const at::Tensor& x, Activation activation) {
  return {.rows = x.size(0),
          .width = x.size(1) / parts_of(activation),
          .dtype = dtype_of(x),
          .activation = activation};
}

}  // namespace

Fp8Matrix activation_forward_fp8(const at::Tensor& x, Activation activation, const Fp8Cast& cast) {
  if (!casts_in_one_pass(x, parts_of(activation))) {
    return cast_to_fp8(activation_forward(x, at::Tensor(), activation), cast);
  }
  const cuda::ActivationShape shape = shape_of(x, activation);
  const auto [matrix, target] = allocate_fp8(x, shape.width, cast);
  cuda::activation_forward_fp8({.shape = shape, .to = target, .x = address(x), .dy = nullptr},
                               current_stream(x));
  return matrix;
}

SummedFp8Gradient activation_backward_fp8(const at::Tensor& dy, const at::Tensor& x, Activation activation,
                                          const Fp8Cast& cast, const WantedSum& sum) {
  if (!casts_in_one_pass(x, parts_of(activation)) || !is_aligned(dy)) {
    if (!sum) {
      return {cast_to_fp8(activation_backward(dy, x, at::Tensor(), activation), cast), at::Tensor()};
    }
    const SummedGradient summed =
        activation_backward_summed(dy, x, at::Tensor(), activation, {.dx = {}, .column_sum = *sum});
    return {cast_to_fp8(summed.dx, cast), summed.column_sum};
  }
  const cuda::ActivationShape shape = shape_of(x, activation);
  require_like(dy, x, shape.rows * shape.width, "dy");
  const auto [matrix, target] = allocate_fp8(x, x.size(1), cast);
  cuda::ActivationFp8Args args{.shape = shape, .to = target, .x = address(x), .dy = address(dy)};
  SummedFp8Gradient result{.dx = matrix};
  at::Tensor partial;
  if (sum) {
    const at::TensorOptions sums = x.options().dtype(at::kFloat);
    partial = at::empty({cuda::activation_fp8_partials(shape), x.size(1)}, sums);
    const SumInto into = place_of_sum(*sum, x.size(1), sums);
    result.column_sum = into.out;
    args.sum = row_sum(partial, into);
  }
  cuda::activation_backward_fp8(args, current_stream(x));
  return result;
}

}  // namespace teratron
