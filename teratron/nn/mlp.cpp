#include "teratron/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// activation(z) on its way to fc2.
Producer activated(const at::Tensor& z, Activation activation) {
  return {[=] { return activation_forward(z, at::Tensor(), activation); },
          [=](const Fp8Cast& cast) { return activation_forward_fp8(z, activation, cast); }};
}

// The gradient of z on its way to fc1. `bias` is what was added to z last, or null: its gradient is the sum of dz.
Producer activation_gradient(const at::Tensor& da, const at::Tensor& z, Activation activation,
                             Parameter* bias) {
  return {[=] {
            if (!bias) return activation_backward(da, z, at::Tensor(), activation);
            const SummedGradient dz = activation_backward_summed(
                da, z, at::Tensor(), activation, {.dx = {}, .column_sum = gradient_place(*bias)});
            add_gradient(*bias, dz.column_sum);
            return dz.dx;
          },
          [=](const Fp8Cast& cast) {
            const SummedFp8Gradient dz =
                activation_backward_fp8(da, z, activation, cast, gradient_place(bias));
            if (bias) add_gradient(*bias, dz.column_sum);
            return dz.dx;
          }};
}

// Whether the products compute the activation and its gradient, too, so that neither is a pass over memory of its own.
bool in_products(const LinearCore& fc1, const LinearCore& fc2) {
  return fc1.product->takes_parts() && fc2.product->takes_parts();
}

// One function for all, so that what lies between the products need not exist in the model's dtype.
struct MlpFunction : torch::autograd::Function<MlpFunction> {
  struct Plan {
    const ColumnLinear* fc1;
    const RowLinear* fc2;
    Activation activation;
    const RowLinear::Addends* addends;
    bool training;  // backward will come
  };

  struct Hidden {
    at::Tensor z;  // of the product alone: undefined unless backward will come
    Producer a;
    LinearCore::Kept x;
    std::vector<int64_t> shape;
  };

  static at::Tensor tensor_of(const Parameter* bias) { return bias ? bias->tensor : at::Tensor(); }

  static Hidden one_by_one(const LinearCore& fc1, const at::Tensor& x, const Plan& plan) {
    const auto [z_SBF, kept] = fc1.forward(x, {tensor_of(plan.fc1->bias()), at::Tensor()}, plan.training);
    const at::Tensor z = as_rows(z_SBF);
    return {z, activated(z, plan.activation), kept, z_SBF.sizes().vec()};
  }

  static Hidden in_one_product(const LinearCore& fc1, const at::Tensor& x, const Plan& plan) {
    const auto [hidden, kept, shape] =
        fc1.forward_activated(x, tensor_of(plan.fc1->bias()), plan.activation, plan.training);
    return {hidden.z, hidden.y, kept, shape};
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const std::optional<at::Tensor>& residual, const Plan& plan) {
    const LinearCore fc1 = plan.fc1->core(), fc2 = plan.fc2->core();
    const Hidden hidden = in_products(fc1, fc2) ? in_one_product(fc1, x, plan) : one_by_one(fc1, x, plan);
    const MatMul::Operand a =
        fc2.product->input(hidden.a, {.columns = plan.training, .recorded = plan.training});
    context->save_for_backward({hidden.x.x, hidden.x.inverse});
    keep(context, "z", hidden.z);
    keep(context, "a", a.columns);
    keep(context, "a_inverse", a.inverse);
    save_pointer(context, "fc1", plan.fc1);
    save_pointer(context, "fc2", plan.fc2);
    context->saved_data["activation"] = static_cast<int64_t>(plan.activation);
    context->saved_data["has_residual"] = residual.has_value();
    const MatMul::Addends addends{tensor_of(plan.addends->bias),
                                  residual ? as_rows(residual->contiguous()) : at::Tensor()};
    return fc2.output(a, addends, hidden.shape);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& column = *saved_pointer<const ColumnLinear>(context, "fc1");
    const LinearCore fc1 = column.core(), fc2 = saved_pointer<const RowLinear>(context, "fc2")->core();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    Moving dy = fc2.output_gradient(gradients[0].contiguous());
    LinearCore::Returning x = fc1.restore({saved[0], saved[1]});
    // Temporaries below: a is free before the activation's backward (unless that hides the way of dy), da and z
    // before fc1's products.
    const auto undo_fc2 = [&](Moving gradient, bool wants_da) {
      return fc2.backward(fc2.restore({take(context, "a"), take(context, "a_inverse")}), std::move(gradient),
                          wants_da);
    };
    const auto argument_gradient = [&] {
      const bool gathers = fc2.gathers_gradient();
      if (!gathers) undo_fc2(dy, false);
      const SummedGradient dz =
          fc2.argument_gradient(dy, take(context, "z"), activation, gradient_place(column.bias()));
      if (gathers) undo_fc2(std::move(dy), false);
      if (column.bias()) add_gradient(*column.bias(), dz.column_sum);
      return dz.dx;
    };
    const std::vector<int64_t> shape = dy.tensor.sizes().vec();
    const MatMul::Operand dz = fc1.product->output_gradient(
        in_products(fc1, fc2) ? argument_gradient()
                              : activation_gradient(as_rows(undo_fc2(std::move(dy), true)),
                                                    take(context, "z"), activation, column.bias()));
    const at::Tensor dx = fc1.backward(std::move(x), dz, shape, context->needs_input_grad(0));
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
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

Stream Mlp::forward_onto(const Residual& residual, const at::Tensor& x_SBH) {
  return fc2_.forward_onto(residual, x_SBH.scalar_type(), [&](const RowLinear::Addends& addends) {
    for (MatMul* product : {fc1_.core().product, fc2_.core().product}) expect_gradient(product->weight());
    for (Parameter* bias : {fc1_.bias(), addends.bias}) {
      if (bias) expect_gradient(*bias);
    }
    const MlpFunction::Plan plan{.fc1 = &fc1_,
                                 .fc2 = &fc2_,
                                 .activation = activation_,
                                 .addends = &addends,
                                 .training = at::GradMode::is_enabled()};
    return MlpFunction::apply(x_SBH, fc1_.core().product->weight().tensor, addends.residual_SBO, plan);
  });
}

}  // namespace teratron
