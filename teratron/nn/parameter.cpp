#include "teratron/nn/parameter.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/autograd.h"
#include "teratron/nn/init.h"

namespace teratron {

namespace {

// A model without a gradient buffer (tests, custom loops) gets its accumulator on first use.
void ensure_main_grad(Parameter& parameter) {
  if (parameter.main_grad.defined()) return;
  const at::Tensor& tensor = parameter.tensor;
  parameter.main_grad = at::zeros(tensor.sizes(), tensor.options().dtype(gradient_dtype(parameter)));
}

void gradient_arrived(Parameter& parameter) {
  parameter.pending_uses -= 1;
  if (parameter.pending_uses == 0 && parameter.on_gradient) parameter.on_gradient();
}

struct Use : torch::autograd::Function<Use> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor,
                            Parameter* parameter) {
    save_pointer(context, "parameter", parameter);
    return tensor.view_as(tensor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    add_gradient(*saved_pointer<Parameter>(context, "parameter"), gradients[0]);
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::ScalarType gradient_dtype(const Parameter& parameter) {
  return parameter.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void expect_gradient(Parameter& parameter) {
  if (parameter.before_use) parameter.before_use();
  if (at::GradMode::is_enabled()) parameter.pending_uses += 1;
}

void accumulate_gradient(Parameter& parameter,
                         const std::function<void(const at::Tensor& sum, bool add)>& write) {
  ensure_main_grad(parameter);
  write(parameter.main_grad, !parameter.main_grad_is_void);
  parameter.main_grad_is_void = false;
  gradient_arrived(parameter);
}

void finish_gradient(Parameter& parameter) {
  if (parameter.main_grad_is_void) parameter.main_grad.zero_();
  parameter.main_grad_is_void = false;
}

SumInto gradient_place(const Parameter& parameter) {
  return {parameter.main_grad, parameter.main_grad.defined() && !parameter.main_grad_is_void};
}

WantedSum gradient_place(const Parameter* parameter) {
  return parameter ? WantedSum(gradient_place(*parameter)) : std::nullopt;
}

void add_gradient(Parameter& parameter, const at::Tensor& gradient) {
  accumulate_gradient(parameter, [&](const at::Tensor& sum, bool add) {
    if (gradient.is_same(sum)) return;
    TERATRON_ASSERT(!gradient.is_alias_of(sum), "{} would get what lies among the sums again",
                    parameter.name);
    if (add) {
      sum.add_(gradient);
    } else {
      sum.copy_(gradient);
    }
  });
}

void add_weight_gradient(Parameter& parameter, const OutputGradient& dy, const at::Tensor& x) {
  accumulate_gradient(parameter,
                      [&](at::Tensor sum, bool add) { linear_weight_gradient_(std::move(sum), dy, x, add); });
}

at::Tensor use(Parameter& parameter) {
  expect_gradient(parameter);
  return Use::apply(parameter.tensor, &parameter);
}

ParameterSet::ParameterSet(const Options& options)
    : options_(options),
      fp8_(options.fp8 ? std::make_unique<Fp8Scaling>(*options.fp8, options.device) : nullptr) {}

Parameter& ParameterSet::create(std::string name, const ParameterOptions& options) {
  TERATRON_ASSERT(find(name) == nullptr, "two parameters named {}", name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = std::move(name);
  parameter.options = options;
  parameter.tensor = at::empty(options.shard.local_shape(),
                               at::TensorOptions().dtype(options_.dtype).device(options_.device));
  initialize(parameter, options_.seed);
  parameter.tensor.requires_grad_(true);
  return parameter;
}

Parameter* ParameterSet::find(std::string_view name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

int64_t ParameterSet::numel() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.tensor.numel();
  return total;
}

Scope Scope::operator/(std::string_view name) const {
  Scope inner = *this;
  inner.prefix_ = full_name(name);
  return inner;
}

Scope Scope::in_fp8() const {
  Scope same = *this;
  same.fp8_ = set_->fp8();
  return same;
}

Parameter& Scope::parameter(std::string_view name, const ParameterOptions& options) const {
  return set_->create(full_name(name), options);
}

std::string Scope::full_name(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

}  // namespace teratron
