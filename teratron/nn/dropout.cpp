#include "teratron/nn/dropout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Row (s, b) of a local [S, B, H] is row (sample, rows[s]) of the whole run.
at::Tensor global_row_ids(const at::Tensor& x_SBH, const DropoutArgs& args) {
  const at::Tensor& sample_ids_B = args.key.sample_ids_B;
  if (!args.rows.of_run) {
    TERATRON_ASSERT(sample_ids_B.defined() && sample_ids_B.numel() == x_SBH.size(1),
                    "dropout without sample ids");
    TERATRON_ASSERT(args.rows.rows_S.defined() && args.rows.rows_S.size(0) == x_SBH.size(0),
                    "dropout without sequence rows");
  }
  return row_ids(args.rows, sample_ids_B);
}

at::Tensor shared_row_ids(const at::Tensor& x_SBH, const DropoutArgs& args) {
  if (!args.row_ids) return global_row_ids(x_SBH, args);
  at::Tensor& rows = args.row_ids->hidden;
  if (!rows.defined()) rows = global_row_ids(x_SBH, args);
  TERATRON_ASSERT(rows.numel() == x_SBH.size(0) * x_SBH.size(1));
  return rows;
}

struct BiasDropoutAdd : torch::autograd::Function<BiasDropoutAdd> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual,
                            const std::optional<at::Tensor>& /*anchor*/, Parameter* bias,
                            const DropoutArgs& args) {
    const at::Tensor rows = args.rate > 0.0 ? shared_row_ids(x, args) : at::Tensor();
    const Dropout dropout{.p = args.rate, .key = {args.key.seed, args.key.site}, .where = {.rows = rows}};
    save_dropout(context, dropout);
    context->saved_data["has_residual"] = residual.has_value();
    save_pointer(context, "bias", bias);
    context->save_for_backward({rows});
    return teratron::bias_dropout_add(x.contiguous(), bias ? bias->tensor.to(x.scalar_type()) : at::Tensor(),
                                      residual ? residual->contiguous() : at::Tensor(), dropout);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor dy = gradients[0].contiguous();
    const Dropout args = saved_dropout(context, context->get_saved_variables()[0]);
    const at::Tensor dx = args.p > 0.0 ? dropout(dy, args) : dy;
    if (auto* bias = saved_pointer<Parameter>(context, "bias")) {
      accumulate_grad(*bias, column_sum(dx, grad_sink(*bias)));
    }
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, has_residual ? dy : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor row_ids(const SequenceRows& rows, const at::Tensor& sample_ids_B) {
  if (rows.of_run) return rows.rows_S;
  const at::Tensor rows_SB = rows.rows_S.dim() == 2 ? rows.rows_S : rows.rows_S.unsqueeze(1);
  return (sample_ids_B * rows.total).unsqueeze(0).add(rows_SB).reshape(-1);
}

at::Tensor bias_dropout_add(const at::Tensor& x_SBH, Parameter* bias, const at::Tensor& residual_SBH,
                            const DropoutArgs& args) {
  if (!bias && !residual_SBH.defined() && args.rate == 0.0) return x_SBH;
  if (bias) register_use(*bias);
  const std::optional<at::Tensor> anchor = bias ? std::optional(bias->tensor) : std::nullopt;
  if (!residual_SBH.defined()) return BiasDropoutAdd::apply(x_SBH, std::nullopt, anchor, bias, args);
  const at::Tensor x_wide_SBH = x_SBH.to(residual_SBH.scalar_type());
  return BiasDropoutAdd::apply(x_wide_SBH, std::optional(residual_SBH), anchor, bias, args);
}

}  // namespace teratron
