#include "teratron/nn/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"
#include "teratron/kernels/activation.h"
#include "teratron/nn/autograd.h"
#include "teratron/nn/dropout.h"

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

// The last dimension of `shape` becomes that of the rows.
at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape) {
  std::vector<int64_t> sizes = shape.vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

struct Linear : torch::autograd::Function<Linear> {
  struct Plan {
    MatMul* product;
    Parameter* bias;
    InputRegion region;
    const Group* group;
    bool training = false;  // backward will come
    BiasGradient bias_gradient = BiasGradient::by_layer;
  };

  // Backward gathers a gathered input once more, and keeps any other as the weight gradient takes it.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const std::optional<at::Tensor>& residual, const Plan& plan) {
    const bool gathered = plan.region == InputRegion::gathered;
    Moving input = start_input(x, plan.region, *plan.group);
    input.work.wait();
    const MatMul::Operand operand = plan.product->input(
        rows(input.tensor), {.columns = plan.training && !gathered, .recorded = plan.training});
    if (gathered) {
      context->save_for_backward({x});
    } else {
      context->save_for_backward({operand.columns, operand.inverse});
    }
    save_pointer(context, "product", plan.product);
    save_pointer(context, "summed_bias", plan.bias_gradient == BiasGradient::by_layer ? plan.bias : nullptr);
    save_pointer(context, "group", plan.group);
    context->saved_data["region"] = static_cast<int64_t>(plan.region);
    context->saved_data["has_residual"] = residual.has_value();
    const MatMul::Addends addends{plan.bias ? plan.bias->tensor : at::Tensor(),
                                  residual ? rows(residual->contiguous()) : at::Tensor()};
    return shaped_like(plan.product->forward(operand, addends), input.tensor.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    MatMul& product = *saved_pointer<MatMul>(context, "product");
    const auto region = static_cast<InputRegion>(context->saved_data["region"].toInt());
    const Group& group = *saved_pointer<const Group>(context, "group");
    const bool gathered = region == InputRegion::gathered;

    // The input is gathered under the input gradient's GEMM, and its gradient reduced under the weight's.
    Moving x = start_input(saved[0], region, group);
    const at::Tensor dy = rows(gradients[0].contiguous());
    const MatMul::Operand gradient = product.output_gradient(dy);
    Moving dx;
    if (context->needs_input_grad(0)) {
      const at::Tensor whole = shaped_like(product.input_gradient(gradient), gradients[0].sizes());
      dx = start_input_gradient(whole, region, group);
    }
    if (auto* bias = saved_pointer<Parameter>(context, "summed_bias")) add_gradient(*bias, column_sum(dy));
    x.work.wait();
    const MatMul::Operand input = gathered ? product.input(rows(x.tensor), {.rows = false, .recorded = false})
                                           : MatMul::Operand{.columns = saved[0], .inverse = saved[1]};
    product.add_weight_gradient(gradient, input);
    dx.work.wait();
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx.tensor, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

at::Tensor apply(const at::Tensor& x, const std::optional<at::Tensor>& residual, Linear::Plan plan) {
  expect_gradient(plan.product->weight());
  if (plan.bias) expect_gradient(*plan.bias);
  plan.training = at::GradMode::is_enabled();
  return Linear::apply(x, plan.product->weight().tensor, residual, plan);
}

InputRegion input_region(const TensorParallel& parallel) {
  return parallel.sequence_parallel ? InputRegion::gathered : InputRegion::copied;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, MatMul& product, Parameter* bias, InputRegion region,
                  const Group& group) {
  return apply(x, std::nullopt, {.product = &product, .bias = bias, .region = region, .group = &group});
}

ColumnLinear::ColumnLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : parallel_(parallel) {
  const Group& group = parallel_.group;
  const std::vector<int64_t> segments =
      options.segments.empty() ? std::vector<int64_t>{options.out} : options.segments;
  Parameter& weight = scope.parameter(
      "weight", {.shard = Shard::cut_segments({options.out, options.in}, 0, segments, group.size, group.rank),
                 .init = options.init});
  product_ = make_matmul(weight, scope.fp8());
  if (!options.bias) return;
  bias_ = &scope.parameter("bias",
                           {.shard = Shard::cut_segments({options.out}, 0, segments, group.size, group.rank),
                            .init = Init::zeros(),
                            .weight_decay = false});
}

at::Tensor ColumnLinear::forward(const at::Tensor& x_SBI, BiasGradient bias_gradient) {
  return apply(x_SBI, std::nullopt,
               {.product = product_.get(),
                .bias = bias_,
                .region = input_region(parallel_),
                .group = &parallel_.group,
                .bias_gradient = bias_gradient});
}

RowLinear::RowLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : parallel_(parallel) {
  const Group& group = parallel_.group;
  Parameter& weight = scope.parameter(
      "weight",
      {.shard = Shard::cut({options.out, options.in}, 1, group.size, group.rank), .init = options.init});
  product_ = make_matmul(weight, scope.fp8());
  if (!options.bias) return;
  bias_ = &scope.parameter("bias", {.shard = Shard::replicated({options.out}),
                                    .init = Init::zeros(),
                                    .weight_decay = false,
                                    .sum_over_tensor_parallel = parallel.sequence_parallel});
}

at::Tensor RowLinear::forward(const at::Tensor& x_SBI) {
  const at::Tensor partial_SBO = linear(x_SBI, *product_, nullptr, InputRegion::local, parallel_.group);
  return parallel_.sequence_parallel ? reduce_scatter(partial_SBO, 0, parallel_.group)
                                     : reduce_from(partial_SBO, parallel_.group);
}

at::Tensor RowLinear::forward_onto(const Residual& residual, const at::Tensor& x_SBI) {
  const at::Tensor& stream_SBO = residual.stream_SBH;
  const bool one_gemm = parallel_.group.size == 1 && residual.dropout.rate == 0.0 &&
                        stream_SBO.scalar_type() == x_SBI.scalar_type();
  if (!one_gemm) return bias_dropout_add(forward(x_SBI), bias_, stream_SBO, residual.dropout);
  return apply(
      x_SBI, stream_SBO,
      {.product = product_.get(), .bias = bias_, .region = InputRegion::local, .group = &parallel_.group});
}

}  // namespace teratron
