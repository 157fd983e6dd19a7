#include "teratron/nn/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/pointwise/activation.h"
#include "teratron/nn/autograd.h"
#include "teratron/nn/dropout.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linear : torch::autograd::Function<Linear> {
  struct Plan {
    LinearCore core;
    Parameter* bias;  // whose gradient others sum
    const QkvTurn* turn = nullptr;
    bool training = false;  // backward will come
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const std::optional<at::Tensor>& residual, const Plan& plan) {
    const MatMul::Addends addends{plan.bias ? plan.bias->tensor : at::Tensor(),
                                  residual ? as_rows(residual->contiguous()) : at::Tensor(), plan.turn};
    const auto [y, kept] = plan.core.forward(x, addends, plan.training);
    context->save_for_backward({kept.x, kept.inverse});
    save_pointer(context, "product", plan.core.product);
    save_pointer(context, "group", plan.core.group);
    context->saved_data["region"] = static_cast<int64_t>(plan.core.region);
    context->saved_data["has_residual"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const LinearCore core{.product = saved_pointer<MatMul>(context, "product"),
                          .region = static_cast<ParallelRegion>(context->saved_data["region"].toInt()),
                          .group = saved_pointer<const Group>(context, "group")};
    Moving dy = core.output_gradient(gradients[0].contiguous());
    LinearCore::Returning x = core.restore({saved[0], saved[1]});
    const at::Tensor dx = core.backward(std::move(x), std::move(dy), context->needs_input_grad(0));
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

// The identity, whose backward sums.
struct Settle : torch::autograd::Function<Settle> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Parameter* bias) {
    save_pointer(context, "bias", bias);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* bias = saved_pointer<Parameter>(context, "bias");
    add_gradient(*bias, column_sum(gradients[0].contiguous(), gradient_place(*bias)));
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor apply(const at::Tensor& x, const std::optional<at::Tensor>& residual, Linear::Plan plan) {
  expect_gradient(plan.core.product->weight());
  if (plan.bias) expect_gradient(*plan.bias);
  plan.training = at::GradMode::is_enabled();
  return Linear::apply(x, plan.core.product->weight().tensor, residual, plan);
}

}  // namespace

at::Tensor settled(const Stream& stream) {
  return stream.bias ? Settle::apply(stream.x_SBH, stream.bias) : stream.x_SBH;
}

at::Tensor linear(const at::Tensor& x, const LinearCore& core) {
  return apply(x, std::nullopt, {.core = core, .bias = nullptr});
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

Stream ColumnLinear::forward(const at::Tensor& x_SBI, const QkvTurn* turn) {
  return {apply(x_SBI, std::nullopt, {.core = core(), .bias = bias_, .turn = turn}), bias_};
}

LinearCore ColumnLinear::core() const {
  return {product_.get(), parallel_.sequence_parallel ? ParallelRegion::gathered : ParallelRegion::copied,
          &parallel_.group};
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

LinearCore RowLinear::core() const {
  return {product_.get(), parallel_.sequence_parallel ? ParallelRegion::scattered : ParallelRegion::summed,
          &parallel_.group};
}

Stream RowLinear::forward_onto(const Residual& residual, const at::Tensor& x_SBI) {
  return forward_onto(residual, x_SBI.scalar_type(), [&](const Addends& addends) {
    return apply(x_SBI, addends.residual_SBO, {.core = core(), .bias = addends.bias});
  });
}

Stream RowLinear::forward_onto(const Residual& residual, at::ScalarType type, const Summed& summed) {
  const at::Tensor& stream_SBO = residual.stream_SBH;
  const bool one_gemm =
      parallel_.group.size == 1 && residual.dropout.rate == 0.0 && stream_SBO.scalar_type() == type;
  if (one_gemm) return {summed({bias_, stream_SBO}), bias_};
  return {bias_dropout_add(summed({nullptr, std::nullopt}), bias_, stream_SBO, residual.dropout)};
}

}  // namespace teratron
