#include "teratron/nn/parallel_matmul.h"

#include <functional>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using enum ParallelRegion;

/// Rows [begin, end).
using Part = std::function<void(int64_t begin, int64_t end)>;

// This rank's rows, and then those of the others.
void own_rows_first(Work& way_of_others, int64_t rows, const Group& group, const Part& compute) {
  const int64_t count = rows / group.size, begin = group.rank * count, end = begin + count;
  compute(begin, end);
  way_of_others.wait();
  if (begin > 0) compute(0, begin);
  if (end < rows) compute(end, rows);
}

// The whole sequence out of everybody's part.
Moving start_gather(const at::Tensor& part, const Group& group) {
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] *= group.size;
  const at::Tensor whole = group.communicator->gather_output(sizes, part.options().requires_grad(false));
  const at::Tensor own = whole.narrow(0, group.rank * part.size(0), part.size(0));
  own.copy_(part.detach());
  return {whole, group.communicator->all_gather(whole, own)};
}

std::vector<int64_t> part_of(at::IntArrayRef shape, const Group& group) {
  std::vector<int64_t> sizes = shape.vec();
  TERATRON_ASSERT(sizes[0] % group.size == 0, "{} cannot be cut into {} parts", sizes[0], group.size);
  sizes[0] /= group.size;
  return sizes;
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

at::Tensor LinearCore::forward_own_first(Moving& x, const at::Tensor& bias_O) const {
  const at::Tensor rows = as_rows(x.tensor);
  const at::Tensor y = at::empty({rows.size(0), product->weight().tensor.size(0)}, rows.options());
  own_rows_first(x.work, rows.size(0), *group, [&](int64_t begin, int64_t end) {
    product->forward_part(y.slice(0, begin, end), rows.slice(0, begin, end), bias_O);
  });
  return y;
}

LinearCore::Output LinearCore::forward(const at::Tensor& x_SBI, const MatMul::Addends& addends,
                                       bool training) const {
  if (region != copied && region != gathered) {
    const MatMul::Operand x = product->input(as_rows(x_SBI), {.columns = training, .recorded = training});
    return {output(x, addends, x_SBI.sizes()), {x.columns, x.inverse}};
  }
  Moving whole = is(gathered) ? start_gather(x_SBI, *group) : Moving{x_SBI, {}};
  if (is(gathered) && product->takes_parts()) {
    TERATRON_ASSERT(!addends.residual_TO.defined());
    const at::Tensor y = forward_own_first(whole, addends.bias_O);
    if (addends.turn != nullptr) turn_qkv_(y, *addends.turn);
    return {shaped_like(y, whole.tensor.sizes()), {x_SBI, {}}};
  }
  whole.work.wait();
  const MatMul::Operand x = product->input(as_rows(whole.tensor),
                                           {.columns = training && region != gathered, .recorded = training});
  return {shaped_like(product->forward(x, addends), whole.tensor.sizes()),
          region == gathered ? Kept{x_SBI, {}} : Kept{x.columns, x.inverse}};
}

LinearCore::ActivatedOutput LinearCore::forward_activated(const at::Tensor& x_SBI, const at::Tensor& bias_O,
                                                          Activation activation, bool training) const {
  Moving whole = is(gathered) ? start_gather(x_SBI, *group) : Moving{x_SBI, {}};
  const at::Tensor x = as_rows(whole.tensor);
  const int64_t wide = product->weight().tensor.size(0), rows = x.size(0);
  const Activated hidden{at::empty({rows, wide / parts_of(activation)}, x.options()),
                         training ? at::empty({rows, wide}, x.options()) : at::Tensor()};
  const auto compute = [&](int64_t begin, int64_t end) {
    const Activated part{hidden.y.slice(0, begin, end),
                         training ? hidden.z.slice(0, begin, end) : at::Tensor()};
    product->forward_activated(part, x.slice(0, begin, end), bias_O, activation);
  };
  if (is(gathered)) {
    own_rows_first(whole.work, rows, *group, compute);
    return {hidden, {x_SBI, {}}, whole.tensor.sizes().vec()};
  }
  compute(0, rows);
  const MatMul::Operand kept = product->input(x, {.columns = training, .recorded = training});
  return {hidden, {kept.columns, kept.inverse}, x_SBI.sizes().vec()};
}

at::Tensor LinearCore::output(const MatMul::Operand& x_TI, const MatMul::Addends& addends,
                              at::IntArrayRef shape) const {
  TERATRON_ASSERT(addends.turn == nullptr, "a row layer turns nothing");
  if (is(scattered)) {
    TERATRON_ASSERT(!addends.bias_O.defined() && !addends.residual_TO.defined());
    return scattered_output(x_TI, shape);
  }
  const at::Tensor y = shaped_like(product->forward(x_TI, addends), shape);
  if (is(summed)) group->communicator->all_reduce(y, ReduceOp::sum).wait();
  return y;
}

at::Tensor LinearCore::scattered_output(const MatMul::Operand& x_TI, at::IntArrayRef shape) const {
  std::vector<int64_t> sizes = part_of(shape, *group);
  sizes.back() = product->weight().tensor.size(0);
  const at::Tensor y = at::empty(sizes, product->weight().tensor.options().requires_grad(false));
  if (!product->takes_parts()) {
    group->communicator->reduce_scatter(y, product->forward(x_TI, {}), ReduceOp::sum).wait();
    return y;
  }
  const int64_t rows = x_TI.rows.size(0), part = rows / group->size;
  const at::Tensor partial = at::empty({rows, sizes.back()}, y.options());
  const auto make = [&](int64_t first, int64_t last) {
    product->forward_part(partial.slice(0, first * part, last * part),
                          x_TI.rows.slice(0, first * part, last * part), {});
  };
  group->communicator->reduce_scatter_made(y, partial, ReduceOp::sum, make).wait();
  return y;
}

Moving LinearCore::output_gradient(const at::Tensor& dy_SBO) const {
  return is(scattered) ? start_gather(dy_SBO, *group) : Moving{dy_SBO, {}};
}

SummedGradient LinearCore::argument_gradient(Moving& dy_SBO, const at::Tensor& z, Activation activation,
                                             const WantedSum& sum) const {
  const at::Tensor dy = as_rows(dy_SBO.tensor);
  if (!gathers_gradient()) return product->argument_gradient({{}, sum}, dy, z, activation);
  const at::Tensor dz = at::empty_like(z);
  WantedSum so_far = sum;
  own_rows_first(dy_SBO.work, dy.size(0), *group, [&](int64_t begin, int64_t end) {
    const ArgumentGradient into{dz.slice(0, begin, end), so_far};
    const at::Tensor rows = dy.slice(0, begin, end), z_of_rows = z.slice(0, begin, end),
                     of_rows = product->argument_gradient(into, rows, z_of_rows, activation).column_sum;
    if (so_far) so_far = SumInto{of_rows, true};
  });
  return {dz, so_far ? so_far->out : at::Tensor()};
}

LinearCore::Returning LinearCore::restore(const Kept& x) const {
  return {is(gathered) ? start_gather(x.x, *group) : Moving{x.x, {}}, x.inverse};
}

Moving LinearCore::start_input_gradient(const at::Tensor& dx) const {
  if (is(copied)) return {dx, group->communicator->all_reduce(dx, ReduceOp::sum)};
  if (!is(gathered)) return {dx, {}};
  const at::Tensor part = at::empty(part_of(dx.sizes(), *group), dx.options());
  return {part, group->communicator->reduce_scatter(part, dx, ReduceOp::sum)};
}

at::Tensor LinearCore::input_gradient_own_first(Moving& dy_SBO) const {
  const at::Tensor rows = as_rows(dy_SBO.tensor);
  const at::Tensor dx = at::empty({rows.size(0), product->weight().tensor.size(1)}, rows.options());
  own_rows_first(dy_SBO.work, rows.size(0), *group, [&](int64_t begin, int64_t end) {
    product->input_gradient_part(dx.slice(0, begin, end), rows.slice(0, begin, end));
  });
  return shaped_like(dx, dy_SBO.tensor.sizes());
}

void LinearCore::add_weight_gradient(Returning x, const MatMul::Operand& dy_TO) const {
  x.x.work.wait();
  const MatMul::Operand input = region == gathered
                                    ? product->input(as_rows(x.x.tensor), {.rows = false, .recorded = false})
                                    : MatMul::Operand{.columns = x.x.tensor, .inverse = x.inverse};
  product->add_weight_gradient(dy_TO, input);
}

at::Tensor LinearCore::backward(Returning x, Moving dy_SBO, bool wants_dx) const {
  const bool in_parts = is(scattered) && wants_dx && product->takes_parts();
  if (!in_parts) dy_SBO.work.wait();
  const at::Tensor dx = in_parts ? input_gradient_own_first(dy_SBO) : at::Tensor();
  const MatMul::Operand dy = product->output_gradient(as_rows(dy_SBO.tensor));
  if (!in_parts) return backward(std::move(x), dy, dy_SBO.tensor.sizes(), wants_dx);
  add_weight_gradient(std::move(x), dy);
  return dx;
}

at::Tensor LinearCore::backward(Returning x, const MatMul::Operand& dy_TO, at::IntArrayRef shape,
                                bool wants_dx) const {
  Moving dx;
  if (wants_dx) dx = start_input_gradient(shaped_like(product->input_gradient(dy_TO), shape));
  add_weight_gradient(std::move(x), dy_TO);
  dx.work.wait();
  return dx.tensor;
}

}  // namespace teratron
