#include "teratron/nn/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/lora.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  struct Args {
    const ParallelMatmul* matmul;
    const LinearEpilogue* epilogue;
    bool training;  // backward will run
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const std::optional<at::Tensor>& residual, const Args& args) {
    const auto& [matmul, epilogue, training] = args;
    const auto& [lora, dropout] = epilogue->adapter;
    AddedProduct added;
    if (lora) {
      const Lora::Use use = lora->forward(x, dropout);
      use.save(context, "lora_");
      added = use.added();
    }
    const auto [y, saved] =
        matmul->forward(x,
                        {epilogue->bias ? epilogue->bias->tensor : at::Tensor(),
                         residual ? as_rows(residual->contiguous()) : at::Tensor(), epilogue->rope, added},
                        training);
    context->save_for_backward({saved.x, saved.scale_inv});
    save_pointer(context, "matmul", matmul);
    save_pointer(context, "lora", lora);
    context->saved_data["has_residual"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& matmul = *saved_pointer<const ParallelMatmul>(context, "matmul");
    const auto* const lora = saved_pointer<const Lora>(context, "lora");
    const at::Tensor dy_SBO = gradients[0].contiguous();
    AsyncTensor dy = matmul.gather_output_grad(dy_SBO);
    ParallelMatmul::SavedInput x = matmul.gather_again({saved[0], saved[1]});
    std::optional<Lora::Use> use;
    at::Tensor du;
    if (lora) {
      use = Lora::Use::saved(context, "lora_");
      du = lora->backward(as_rows(dy_SBO), *use);
    }
    const at::Tensor dx = matmul.backward(std::move(x), std::move(dy), context->needs_input_grad(0));
    if (lora && dx.defined()) lora->add_input_grad_(as_rows(dx), du, *use);
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

// The identity; backward computes the bias gradient.
struct BiasGrad : torch::autograd::Function<BiasGrad> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const Parameter* bias) {
    save_pointer(context, "bias", bias);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* bias = saved_pointer<Parameter>(context, "bias");
    const auto sink = grad_sink(bias);
    accumulate_grad(*bias, sink ? column_sum(gradients[0].contiguous(), *sink) : at::Tensor());
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

Shard column_shard(const std::vector<int64_t>& shape, const LinearOptions& options, const Group& group) {
  if (options.replicated) return Shard::replicated(shape);
  if (options.group && options.out / options.group->size() < group.size)
    return Shard::split_groups(shape, *options.group, group.size, group.rank);
  const std::vector<int64_t> segments =
      options.segments.empty() ? std::vector<int64_t>{options.out} : options.segments;
  return Shard::split_segments(shape, 0, segments, group.size, group.rank);
}

AxisSet replicated_grad_sum(const LinearOptions& options, const TensorParallel& parallel) {
  return options.replicated ? parallel.grad_sum() : AxisSet();
}

// "linear_qkv" of "decoder.layers.0.self_attention.linear_qkv".
std::string layer_name(const Scope& scope) {
  return scope.prefix().substr(scope.prefix().rfind('.') + 1);
}

}  // namespace

at::Tensor apply_bias_grad(const Hidden& hidden) {
  return hidden.bias ? BiasGrad::apply(hidden.x_SBH, hidden.bias->tensor, hidden.bias) : hidden.x_SBH;
}

at::Tensor linear(const at::Tensor& x_SBI, const ParallelMatmul& matmul, const LinearEpilogue& epilogue) {
  register_use(matmul.weight());
  if (epilogue.bias) register_use(*epilogue.bias);
  const Lora* const lora = epilogue.adapter.lora;
  if (lora) lora->register_uses();
  const LinearFunction::Args args{&matmul, &epilogue, at::GradMode::is_enabled()};
  const at::Tensor anchor = lora ? lora->anchor() : matmul.weight().tensor;
  return LinearFunction::apply(x_SBI, anchor, epilogue.residual_SBO, args);
}

at::Tensor Normed::tensor() const {
  if (!parameters_.weight.defined()) return x_SBH_;
  return norm_forward(x_SBH_.contiguous(), {}, parameters_, options_).y;
}

std::optional<NormedRows> Normed::rows_for(const at::Tensor& w) const {
  if (!parameters_.weight.defined()) return std::nullopt;
  NormedRows rows{as_rows(x_SBH_), parameters_, options_};
  return normalizes_rows(rows, w) ? std::optional(rows) : std::nullopt;
}

ColumnLinear::ColumnLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : matmul_(ParallelMatmul::column(
          scope.parameter("weight",
                          {.shard = column_shard({options.out, options.in}, options, parallel.group),
                           .init = options.init,
                           .grad_sum = replicated_grad_sum(options, parallel)}),
          scope.fp8(), options.replicated ? TensorParallel{} : parallel)),
      lora_(Lora::make(scope, Lora::Kind::column,
                       {layer_name(scope), matmul_.weight().shard(), options.parts,
                        replicated_grad_sum(options, parallel)},
                       options.replicated ? TensorParallel{} : parallel)) {
  if (!options.bias) return;
  bias_ = &scope.parameter("bias", {.shard = column_shard({options.out}, options, parallel.group),
                                    .init = Init::zeros(),
                                    .param_group = ParamGroup::no_weight_decay,
                                    .grad_sum = replicated_grad_sum(options, parallel)});
}

Hidden ColumnLinear::forward(const at::Tensor& x_SBI, const QkvRope* rope, const DropoutArgs* dropout) {
  return {linear(x_SBI, matmul_, {.bias = bias_, .rope = rope, .adapter = {lora_.get(), dropout}}), bias_};
}

std::optional<NormedRows> ColumnLinear::normed_rows(const Normed& x_SBI) const {
  return !lora_ && matmul_.reads_rows_as_they_are() ? x_SBI.rows_for(matmul_.weight().tensor) : std::nullopt;
}

at::Tensor ColumnLinear::forward_normed(const Normed& x_SBI) {
  const std::optional<NormedRows> rows = normed_rows(x_SBI);
  if (!rows) return forward(x_SBI.tensor()).x_SBH;
  register_use(matmul_.weight());
  if (bias_) register_use(*bias_);
  return shaped_like(linear_normed(*rows, matmul_.weight().tensor, bias_ ? bias_->tensor : at::Tensor()),
                     x_SBI.sizes());
}

RowLinear::RowLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel)
    : matmul_(ParallelMatmul::row(
          scope.parameter("weight", {.shard = Shard::split({options.out, options.in}, 1, parallel.group.size,
                                                           parallel.group.rank),
                                     .init = options.init}),
          scope.fp8(), parallel)),
      lora_(Lora::make(scope, Lora::Kind::row, {layer_name(scope), matmul_.weight().shard()}, parallel)) {
  if (!options.bias) return;
  bias_ = &scope.parameter("bias", {.shard = Shard::replicated({options.out}),
                                    .init = Init::zeros(),
                                    .param_group = ParamGroup::no_weight_decay,
                                    .grad_sum = parallel.grad_sum()});
}

Hidden RowLinear::forward_add_residual(const at::Tensor& x_SBI, const ResidualDropout& residual) {
  LinearEpilogue epilogue = fused_epilogue(residual, x_SBI.scalar_type());
  epilogue.adapter = {lora_.get(), &residual.dropout};
  return add_unfused(linear(x_SBI, matmul_, epilogue), epilogue, residual);
}

LinearEpilogue RowLinear::fused_epilogue(const ResidualDropout& residual, at::ScalarType dtype) const {
  const at::Tensor& added = residual.residual_SBH;
  const bool fuses = matmul_.group().size == 1 && residual.dropout.rate == 0.0 &&
                     (!added.defined() || added.scalar_type() == dtype);
  if (!fuses) return {};
  return {.bias = bias_, .residual_SBO = added.defined() ? std::optional(added) : std::nullopt};
}

Hidden RowLinear::add_unfused(const at::Tensor& y_SBO, const LinearEpilogue& epilogue,
                              const ResidualDropout& residual) const {
  if (epilogue.bias || epilogue.residual_SBO) return {y_SBO, bias_};
  return {bias_dropout_add(y_SBO, bias_, residual.residual_SBH, residual.dropout)};
}

}  // namespace teratron
