#include "teratron/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Weight and bias in the dtype of x, which is wider with an fp32 residual stream.
NormParameters cast_parameters(const at::Tensor& x, const Parameter& weight, const Parameter* bias) {
  return {weight.tensor.detach().to(x.scalar_type()),
          bias ? bias->tensor.detach().to(x.scalar_type()) : at::Tensor()};
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  struct Args {
    Parameter* weight;
    Parameter* bias;  // may be null
    const NormOptions* options;
    Parameter* input_bias;  // Hidden::bias
  };

  // -> norm(x), x
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/,
                               const Args& args) {
    const auto& [weight, bias, options, input_bias] = args;
    const NormOutput output = norm_forward(x.contiguous(), {}, cast_parameters(x, *weight, bias), *options);
    context->set_materialize_grads(false);  // the residual may be unused
    context->save_for_backward({output.sum, output.mean, output.rstd});
    save_pointer(context, "weight", weight);
    save_pointer(context, "bias", bias);
    save_pointer(context, "options", options);
    save_pointer(context, "input_bias", input_bias);
    return {output.y.to(weight->tensor.scalar_type()), x.view_as(x)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* weight = saved_pointer<Parameter>(context, "weight");
    auto* bias = saved_pointer<Parameter>(context, "bias");
    const at::Tensor dy = gradients[0].to(saved[0].scalar_type()).contiguous();
    const at::Tensor dresidual = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    NormParameters parameters = cast_parameters(dy, *weight, bias);
    parameters.dweight_sink = grad_sink(*weight);
    if (bias) parameters.dbias_sink = grad_sink(*bias);
    auto* input_bias = saved_pointer<Parameter>(context, "input_bias");
    parameters.dx_sum_sink = grad_sink(input_bias);
    const NormGradients result = norm_backward(dy, dresidual, {saved[0], saved[1], saved[2]}, parameters,
                                               *saved_pointer<const NormOptions>(context, "options"));
    accumulate_grad(*weight, result.dweight);
    if (bias) accumulate_grad(*bias, result.dbias);
    if (input_bias) accumulate_grad(*input_bias, result.dx_sum);
    return {result.dx, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

// The factors of a norm without weights; no set has them.
static std::unique_ptr<Parameter> constant_weight(const Scope& scope, int64_t width,
                                                  const NormOptions& options) {
  auto weight = std::make_unique<Parameter>();
  weight->name = scope.prefix() + ".weight";
  weight->tensor = at::full({width}, options.zero_centered ? 0.0 : 1.0, scope.options().tensors());
  freeze(*weight);
  return weight;
}

Norm::Norm(const Scope& scope, int64_t width, const NormOptions& options, const TensorParallel& parallel,
           NormWeights weights)
    : options_(options) {
  if (weights == NormWeights::none) {
    constant_ = constant_weight(scope, width, options);
    weight_ = constant_.get();
    return;
  }
  const ParameterOptions common{.shard = Shard::replicated({width}),
                                .param_group = ParamGroup::no_weight_decay,
                                .grad_sum = parallel.grad_sum()};
  ParameterOptions weight = common;
  weight.init = options.zero_centered ? Init::zeros() : Init::ones();
  weight_ = &scope.parameter("weight", weight);
  if (options.kind == NormKind::layer && weights == NormWeights::all)
    bias_ = &scope.parameter("bias", common);
}

at::Tensor Norm::forward(const at::Tensor& x) {
  return forward_with_residual({x}).normed;
}

Normed Norm::deferred(const at::Tensor& x_SBH) const {
  register_use(*weight_);
  if (bias_) register_use(*bias_);
  const NormParameters parameters = cast_parameters(x_SBH, *weight_, bias_);
  if (x_SBH.scalar_type() == dtype()) return {x_SBH, parameters, options_};
  return norm_forward(x_SBH.contiguous(), {}, parameters, options_).y.to(dtype());
}

Norm::Output Norm::forward_with_residual(const Hidden& x) {
  register_use(*weight_);
  if (bias_) register_use(*bias_);
  const NormFunction::Args args{weight_, bias_, &options_, x.bias};
  const variable_list results = NormFunction::apply(x.x_SBH, grad_anchor({weight_, bias_, x.bias}), args);
  return {results[0], results[1]};
}

}  // namespace teratron
