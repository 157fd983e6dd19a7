#include "teratron/nn/linear_core.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// The whole sequence out of everybody's part.
Moving start_gather(const at::Tensor& part, const Group& group) {
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] *= group.size;
  const at::Tensor whole = group.communicator->gather_output(sizes, part.options().requires_grad(false));
  const at::Tensor own = whole.narrow(0, group.rank * part.size(0), part.size(0));
  own.copy_(part.detach());
  return {whole, group.communicator->all_gather(whole, own)};
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

// The product of this rank's own rows hides the way of the others.
at::Tensor LinearCore::forward_own_first(Moving& x, const at::Tensor& bias_O) const {
  const at::Tensor rows = as_rows(x.tensor);
  const at::Tensor y = at::empty({rows.size(0), product->weight().tensor.size(0)}, rows.options());
  const auto part = [&](int64_t begin, int64_t end) {
    if (begin < end) product->forward_part(y.slice(0, begin, end), rows.slice(0, begin, end), bias_O);
  };
  const int64_t count = rows.size(0) / group->size, begin = group->rank * count;
  part(begin, begin + count);
  x.work.wait();
  part(0, begin);
  part(begin + count, rows.size(0));
  return y;
}

LinearCore::Output LinearCore::forward(const at::Tensor& x_SBI, const MatMul::Addends& addends,
                                       bool training) const {
  const bool gathered = region == InputRegion::gathered;
  Moving whole = start_input(x_SBI, region, *group);
  if (gathered && product->takes_parts()) {
    TERATRON_ASSERT(!addends.residual_TO.defined());
    const at::Tensor y = forward_own_first(whole, addends.bias_O);
    return {shaped_like(y, whole.tensor.sizes()), {x_SBI, {}}};
  }
  whole.work.wait();
  const MatMul::Operand x =
      product->input(as_rows(whole.tensor), {.columns = training && !gathered, .recorded = training});
  return {shaped_like(product->forward(x, addends), whole.tensor.sizes()),
          gathered ? Kept{x_SBI, {}} : Kept{x.columns, x.inverse}};
}

LinearCore::Returning LinearCore::restore(const Kept& x) const {
  return {start_input(x.x, region, *group), x.inverse};
}

at::Tensor LinearCore::backward(Returning x, const MatMul::Operand& dy_TO, at::IntArrayRef shape,
                                bool wants_dx) const {
  Moving dx;
  if (wants_dx) {
    dx = start_input_gradient(shaped_like(product->input_gradient(dy_TO), shape), region, *group);
  }
  x.x.work.wait();
  const MatMul::Operand input = region == InputRegion::gathered
                                    ? product->input(as_rows(x.x.tensor), {.rows = false, .recorded = false})
                                    : MatMul::Operand{.columns = x.x.tensor, .inverse = x.inverse};
  product->add_weight_gradient(dy_TO, input);
  dx.work.wait();
  return dx.tensor;
}

}  // namespace teratron
