#include "teratron/nn/recompute.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call : torch::CustomClassHolder {
  Call(RecomputeFunction function_, RecomputeOptions options_)
      : function(std::move(function_)), options(std::move(options_)) {}
  RecomputeFunction function;
  RecomputeOptions options;
};

at::Tensor local_shard(const at::Tensor& x, const Group& group) {
  if (group.size == 1) return x;
  const int64_t rows = x.size(0) / group.size;
  return x.narrow(0, group.rank * rows, rows).clone();
}

// The inputs as leaves of a separate graph.
variable_list fresh_inputs(const variable_list& saved, const std::vector<bool>& needs, const Group& group) {
  variable_list inputs;
  for (size_t i = 0; i < saved.size(); ++i) {
    const at::Tensor whole = i > 0 || group.size == 1 ? saved[i] : all_gather_values(saved[i], 0, group);
    inputs.push_back(whole.detach().requires_grad_(needs[i]));
  }
  return inputs;
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(AutogradContext* context, at::TensorList inputs, const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<Call>& call) {
    variable_list saved;
    c10::List<bool> needs;
    for (const at::Tensor& input : inputs) {
      saved.push_back(saved.empty() ? local_shard(input, call->options.shared_by) : input);
      needs.push_back(input.requires_grad());
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["needs"] = needs;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->function(inputs);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    const RecomputeOptions& options = call.options;
    const variable_list inputs = fresh_inputs(
        context->get_saved_variables(), context->saved_data["needs"].toBoolList().vec(), options.shared_by);
    // The function registers its uses again.
    for (Parameter* parameter : options.parameters) parameter->pending_grads -= 1;
    {
      const at::AutoGradMode with_gradients(true);
      const at::Tensor output = call.function(inputs);
      torch::autograd::backward({output}, {gradients[0]});
    }
    variable_list result;
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.resize(result.size() + 2);  // anchor, call
    return result;
  }
};

}  // namespace

at::Tensor recompute(const RecomputeFunction& function, const std::vector<at::Tensor>& inputs,
                     const RecomputeOptions& options) {
  // Inputs may come from frozen parameters; the anchor requires gradients if any parameter does.
  at::Tensor anchor = inputs.at(0);
  for (const Parameter* parameter : options.parameters) {
    if (parameter->tensor.requires_grad()) anchor = parameter->tensor;
  }
  const bool differentiable =
      anchor.requires_grad() || std::any_of(inputs.begin(), inputs.end(),
                                            [](const at::Tensor& input) { return input.requires_grad(); });
  if (!differentiable || !at::GradMode::is_enabled()) return function(inputs);
  for (Parameter* parameter : options.parameters) register_use(*parameter);
  return Recomputed::apply(at::TensorList(inputs), anchor, c10::make_intrusive<Call>(function, options));
}

}  // namespace teratron
