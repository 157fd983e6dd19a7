#include "teratron/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Activation activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    return activation_forward(x.contiguous(), at::Tensor(), activation);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    return {activation_backward(gradients[0].contiguous(), saved[0].contiguous(), at::Tensor(), activation),
            at::Tensor()};
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
  return fc2_.forward(ActivationFunction::apply(fc1_.forward(x_SBH), activation_));
}

}  // namespace teratron
