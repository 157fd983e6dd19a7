#include "teratron/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gain and shift in the type of x, which is wider than theirs when the residual stream is kept in fp32.
NormParameters in_type_of(const at::Tensor& x, const Parameter& gain, const Parameter* shift) {
  return {gain.tensor.detach().to(x.scalar_type()),
          shift ? shift->tensor.detach().to(x.scalar_type()) : at::Tensor()};
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  struct Plan {
    Parameter* gain;
    Parameter* shift;  // may be null
    const NormOptions* options;
    Parameter* stream_bias;  // may be null
  };

  // The normed x and x.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const Plan& plan) {
    const auto& [gain, shift, options, stream_bias] = plan;
    const NormOutput output = norm_forward(x.contiguous(), {}, in_type_of(x, *gain, shift), *options);
    context->set_materialize_grads(false);  // x may have no other use
    context->save_for_backward({output.sum, output.mean, output.rstd});
    save_pointer(context, "gain", gain);
    save_pointer(context, "shift", shift);
    save_pointer(context, "options", options);
    save_pointer(context, "stream_bias", stream_bias);
    return {output.y.to(weight.scalar_type()), x.view_as(x)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* gain = saved_pointer<Parameter>(context, "gain");
    auto* shift = saved_pointer<Parameter>(context, "shift");
    const at::Tensor dy = gradients[0].to(saved[0].scalar_type()).contiguous();
    const at::Tensor dresidual = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    NormParameters parameters = in_type_of(dy, *gain, shift);
    parameters.dweight_place = gradient_place(*gain);
    if (shift) parameters.dbias_place = gradient_place(*shift);
    auto* stream_bias = saved_pointer<Parameter>(context, "stream_bias");
    parameters.dx_sum = gradient_place(stream_bias);
    const NormGradients result = norm_backward(dy, dresidual, {saved[0], saved[1], saved[2]}, parameters,
                                               *saved_pointer<const NormOptions>(context, "options"));
    add_gradient(*gain, result.dweight);
    if (shift) add_gradient(*shift, result.dbias);
    if (stream_bias) add_gradient(*stream_bias, result.dx_sum);
    return {result.dx, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Norm::Norm(const Scope& scope, int64_t width, const NormOptions& options, const TensorParallel& parallel)
    : options_(options) {
  const ParameterOptions common{.shard = Shard::replicated({width}),
                                .weight_decay = false,
                                .sum_over_tensor_parallel = parallel.sequence_parallel};
  ParameterOptions weight = common;
  weight.init = options.zero_centered ? Init::zeros() : Init::ones();
  weight_ = &scope.parameter("weight", weight);
  if (options.kind == NormKind::layer) bias_ = &scope.parameter("bias", common);
}

at::Tensor Norm::forward(const at::Tensor& x) {
  return forward_beside({x}).normed;
}

Norm::Beside Norm::forward_beside(const Stream& stream) {
  expect_gradient(*weight_);
  if (bias_) expect_gradient(*bias_);
  const NormFunction::Plan plan{weight_, bias_, &options_, stream.bias};
  const variable_list results = NormFunction::apply(stream.x_SBH, weight_->tensor, plan);
  return {results[0], results[1]};
}

}  // namespace teratron
