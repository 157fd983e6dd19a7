#include "teratron/nn/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"
#include "teratron/kernels/activation.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

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

struct Linear : torch::autograd::Function<Linear> {
  struct Plan {
    Parameter* weight;
    Parameter* bias;
    InputRegion region;
    const Group* group;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Plan& plan) {
    context->save_for_backward({x, weight});
    save_pointer(context, "weight", plan.weight);
    save_pointer(context, "bias", plan.bias);
    save_pointer(context, "group", plan.group);
    context->saved_data["region"] = static_cast<int64_t>(plan.region);
    Moving input = start_input(x, plan.region, *plan.group);
    input.work.wait();
    return at::linear(input.tensor, weight,
                      plan.bias ? std::optional<at::Tensor>(plan.bias->tensor) : std::nullopt);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto region = static_cast<InputRegion>(context->saved_data["region"].toInt());
    const Group& group = *saved_pointer<const Group>(context, "group");
    const at::Tensor dy = gradients[0].contiguous();

    // The input is gathered under the input gradient's GEMM, and its gradient reduced under the weight's.
    Moving input = start_input(saved[0], region, group);
    Moving dx;
    if (context->needs_input_grad(0)) dx = start_input_gradient(at::matmul(dy, saved[1]), region, group);
    if (auto* bias = saved_pointer<Parameter>(context, "bias")) add_gradient(*bias, column_sum(rows(dy)));
    input.work.wait();
    add_weight_gradient(*saved_pointer<Parameter>(context, "weight"), rows(dy), rows(input.tensor));
    dx.work.wait();
    return {dx.tensor, at::Tensor(), at::Tensor()};
  }
};

InputRegion input_region(const TensorParallel& parallel) {
  return parallel.sequence_parallel ? InputRegion::gathered : InputRegion::copied;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias, InputRegion region,
                  const Group& group) {
  expect_gradient(weight);
  if (bias) expect_gradient(*bias);
  return Linear::apply(x, weight.tensor, Linear::Plan{&weight, bias, region, &group});
}

ColumnLinear::ColumnLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : parallel_(parallel) {
  const Group& group = parallel_.group;
  const std::vector<int64_t> segments =
      options.segments.empty() ? std::vector<int64_t>{options.out} : options.segments;
  weight_ = &scope.parameter(
      "weight", {.shard = Shard::cut_segments({options.out, options.in}, 0, segments, group.size, group.rank),
                 .init = options.init});
  if (!options.bias) return;
  bias_ = &scope.parameter("bias",
                           {.shard = Shard::cut_segments({options.out}, 0, segments, group.size, group.rank),
                            .init = Init::zeros(),
                            .weight_decay = false});
}

at::Tensor ColumnLinear::forward(const at::Tensor& x_SBI) {
  return linear(x_SBI, *weight_, bias_, input_region(parallel_), parallel_.group);
}

RowLinear::RowLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : parallel_(parallel) {
  const Group& group = parallel_.group;
  weight_ = &scope.parameter(
      "weight",
      {.shard = Shard::cut({options.out, options.in}, 1, group.size, group.rank), .init = options.init});
  if (!options.bias) return;
  bias_ = &scope.parameter("bias", {.shard = Shard::replicated({options.out}),
                                    .init = Init::zeros(),
                                    .weight_decay = false,
                                    .sum_over_tensor_parallel = parallel.sequence_parallel});
}

at::Tensor RowLinear::forward(const at::Tensor& x_SBI) {
  const at::Tensor partial_SBO = linear(x_SBI, *weight_, nullptr, InputRegion::local, parallel_.group);
  return parallel_.sequence_parallel ? reduce_scatter(partial_SBO, 0, parallel_.group)
                                     : reduce_from(partial_SBO, parallel_.group);
}

}  // namespace teratron
