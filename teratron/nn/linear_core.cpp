#include "teratron/nn/linear_core.h"

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

// A tensor that may still be on its way between the ranks; not to be read before work.wait().
struct Moving {
  at::Tensor tensor;
  Work work;
};

// The whole sequence out of everybody's part.
Moving start_gather(const at::Tensor& x, const Group& group) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] *= group.size;
  const at::Tensor whole = at::empty(shape, x.options().requires_grad(false));
  return {whole, group.communicator->all_gather(whole, x.detach().contiguous())};
}

Moving start_input(const at::Tensor& x, InputRegion region, const Group& group) {
  const bool whole = group.size == 1 || region != InputRegion::gathered;
  return whole ? Moving{x, {}} : start_gather(x, group);
}

Moving start_input_gradient(const at::Tensor& dx, InputRegion region, const Group& group) {
  if (group.size == 1 || region == InputRegion::local) return {dx, {}};
  if (region == InputRegion::copied) return {dx, group.communicator->all_reduce(dx, ReduceOp::sum)};
  std::vector<int64_t> shape = dx.sizes().vec();
  shape[0] /= group.size;
  at::Tensor part = at::empty(shape, dx.options());
  return {part, group.communicator->reduce_scatter(part, dx, ReduceOp::sum)};
}

}  // namespace

at::Tensor as_rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape) {
  std::vector<int64_t> sizes = shape.vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

LinearCore::Input LinearCore::input(const at::Tensor& x_SBI, bool training) const {
  const bool gathered = region == InputRegion::gathered;
  Moving whole = start_input(x_SBI, region, *group);
  whole.work.wait();
  Input result{.operand = product->input(as_rows(whole.tensor),
                                         {.columns = training && !gathered, .recorded = training}),
               .shape = whole.tensor.sizes().vec()};
  result.kept = gathered ? Kept{x_SBI, {}} : Kept{result.operand.columns, result.operand.inverse};
  return result;
}

at::Tensor LinearCore::backward(const Kept& x, const MatMul::Operand& dy_TO, at::IntArrayRef shape,
                                bool wants_dx) const {
  const bool gathered = region == InputRegion::gathered;
  // The input is gathered under the input gradient's GEMM, and its gradient reduced under the weight's.
  Moving whole = start_input(x.x, region, *group);
  Moving dx;
  if (wants_dx) {
    dx = start_input_gradient(shaped_like(product->input_gradient(dy_TO), shape), region, *group);
  }
  whole.work.wait();
  const MatMul::Operand input =
      gathered ? product->input(as_rows(whole.tensor), {.rows = false, .recorded = false})
               : MatMul::Operand{.columns = x.x, .inverse = x.inverse};
  product->add_weight_gradient(dy_TO, input);
  dx.work.wait();
  return dx.tensor;
}

}  // namespace teratron
