#include "teratron/nn/dropout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Row (s, b) of a local [S, B, H] is row (sample, position) of the whole training.
at::Tensor global_rows(const at::Tensor& x_SBH, const DropoutPlan& plan) {
  const at::Tensor& samples_B = plan.key.samples_B;
  TERATRON_ASSERT(samples_B.defined() && samples_B.numel() == x_SBH.size(1),
                  "dropout without sample numbers");
  const at::Tensor positions_S = at::arange(x_SBH.size(0), samples_B.options()) + plan.part.first;
  return (samples_B * plan.part.whole).unsqueeze(0).add(positions_S.unsqueeze(1)).reshape(-1);
}

at::Tensor shared_rows(const at::Tensor& x_SBH, const DropoutPlan& plan) {
  if (!plan.rows) return global_rows(x_SBH, plan);
  at::Tensor& rows = plan.rows->hidden;
  if (!rows.defined()) rows = global_rows(x_SBH, plan);
  TERATRON_ASSERT(rows.numel() == x_SBH.size(0) * x_SBH.size(1));
  return rows;
}

struct BiasDropoutAdd : torch::autograd::Function<BiasDropoutAdd> {
  static Dropout plan_of(AutogradContext* context, const at::Tensor& rows) {
    return {.p = context->saved_data["rate"].toDouble(),
            .key = {static_cast<uint64_t>(context->saved_data["seed"].toInt()),
                    static_cast<uint64_t>(context->saved_data["site"].toInt())},
            .where = {.rows = rows}};
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual, Parameter* bias,
                            const DropoutPlan& plan) {
    context->saved_data["rate"] = plan.rate;
    context->saved_data["seed"] = static_cast<int64_t>(plan.key.seed);
    context->saved_data["site"] = static_cast<int64_t>(plan.key.site);
    context->saved_data["has_residual"] = residual.has_value();
    save_pointer(context, "bias", bias);
    const at::Tensor rows = plan.rate > 0.0 ? shared_rows(x, plan) : at::Tensor();
    context->save_for_backward({rows});
    return teratron::bias_dropout_add(x.contiguous(), bias ? bias->tensor.to(x.scalar_type()) : at::Tensor(),
                                      residual ? residual->contiguous() : at::Tensor(),
                                      plan_of(context, rows));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor dy = gradients[0].contiguous();
    const Dropout plan = plan_of(context, context->get_saved_variables()[0]);
    const at::Tensor dx = plan.p > 0.0 ? dropout(dy, plan) : dy;
    if (auto* bias = saved_pointer<Parameter>(context, "bias")) {
      add_gradient(*bias, column_sum(dx, gradient_place(*bias)));
    }
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, has_residual ? dy : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

SequencePart local_sequence(int64_t local_length, const TensorParallel& parallel) {
  if (!parallel.sequence_parallel) return {0, local_length};
  return {parallel.group.rank * local_length, parallel.group.size * local_length};
}

at::Tensor bias_dropout_add(const at::Tensor& x_SBH, Parameter* bias, const at::Tensor& residual_SBH,
                            const DropoutPlan& plan) {
  if (!bias && !residual_SBH.defined() && plan.rate == 0.0) return x_SBH;
  if (bias) expect_gradient(*bias);
  if (!residual_SBH.defined()) return BiasDropoutAdd::apply(x_SBH, std::nullopt, bias, plan);
  const at::Tensor x_wide_SBH = x_SBH.to(residual_SBH.scalar_type());
  return BiasDropoutAdd::apply(x_wide_SBH, std::optional(residual_SBH), bias, plan);
}

}  // namespace teratron
