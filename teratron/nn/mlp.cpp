#include "teratron/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  // `bias` is what was added to x last, or null: its gradient is the sum of dx.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Activation activation,
                            const Parameter* bias) {
    context->save_for_backward({x});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    save_pointer(context, "bias", bias);
    return activation_forward(x.contiguous(), at::Tensor(), activation);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    auto* bias = saved_pointer<Parameter>(context, "bias");
    const at::Tensor dy = gradients[0].contiguous(), x = saved[0].contiguous();
    if (!bias) return {activation_backward(dy, x, at::Tensor(), activation), at::Tensor(), at::Tensor()};
    const SummedGradient result = activation_backward_summed(dy, x, at::Tensor(), activation);
    add_gradient(*bias, result.column_sum);
    return {result.dx, at::Tensor(), at::Tensor()};
  }
};

LinearOptions fc1_options(const MlpOptions& options) {
  LinearOptions linear{
      .in = options.hidden, .out = options.ffn_hidden, .bias = options.bias, .init = options.fc1_init};
  if (is_gated(options.activation)) {
    linear.out = 2 * options.ffn_hidden;
    linear.segments = {options.ffn_hidden, options.ffn_hidden};
  }
  return linear;
}

}  // namespace

Mlp::Mlp(const Scope& scope, const MlpOptions& options, const TensorParallel& parallel)
    : activation_(options.activation),
      fc1_(scope / "linear_fc1", fc1_options(options), parallel),
      fc2_(scope / "linear_fc2",
           {.in = options.ffn_hidden, .out = options.hidden, .bias = options.bias, .init = options.fc2_init},
           parallel) {}

at::Tensor Mlp::forward(const at::Tensor& x_SBH) {
  return fc2_.forward(activated(x_SBH));
}

at::Tensor Mlp::forward_onto(const Residual& residual, const at::Tensor& x_SBH) {
  return fc2_.forward_onto(residual, activated(x_SBH));
}

at::Tensor Mlp::activated(const at::Tensor& x_SBH) {
  return ActivationFunction::apply(fc1_.forward(x_SBH, BiasGradient::by_consumer), activation_, fc1_.bias());
}

}  // namespace teratron
