#include "teratron/nn/parameter.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/init.h"

namespace teratron {

namespace {

// Without a gradient buffer (tests, custom loops) main_grad is allocated on first use.
void ensure_main_grad(Parameter& parameter) {
  if (parameter.main_grad.defined()) return;
  const at::Tensor& tensor = parameter.tensor;
  parameter.main_grad =
      at::zeros(tensor.sizes(), tensor.options().dtype(main_grad_dtype(tensor.scalar_type())));
}

void grad_ready(Parameter& parameter) {
  parameter.pending_grads -= 1;
  if (parameter.pending_grads == 0 && parameter.on_grad_ready) parameter.on_grad_ready();
}

struct ParameterFunction : torch::autograd::Function<ParameterFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor,
                            Parameter* parameter) {
    save_pointer(context, "parameter", parameter);
    return tensor.view_as(tensor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    accumulate_grad(*saved_pointer<Parameter>(context, "parameter"), gradients[0]);
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::ScalarType main_grad_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

void register_use(Parameter& parameter) {
  if (parameter.wait_param_gather) parameter.wait_param_gather();
  if (at::GradMode::is_enabled()) parameter.pending_grads += 1;
}

void accumulate_grad(Parameter& parameter, c10::function_ref<void(const at::Tensor& sum, bool add)> write) {
  if (parameter.options.trainable) {
    ensure_main_grad(parameter);
    write(parameter.main_grad, !parameter.grad_is_stale);
    parameter.grad_is_stale = false;
  }
  grad_ready(parameter);
}

void finalize_grad(Parameter& parameter) {
  if (parameter.grad_is_stale) parameter.main_grad.zero_();
  parameter.grad_is_stale = false;
}

GradSink grad_sink(const Parameter& parameter) {
  return {parameter.main_grad, parameter.main_grad.defined() && !parameter.grad_is_stale};
}

std::optional<GradSink> grad_sink(const Parameter* parameter) {
  if (!parameter || !parameter->options.trainable) return std::nullopt;
  return grad_sink(*parameter);
}

void accumulate_grad(Parameter& parameter, const at::Tensor& gradient) {
  accumulate_grad(parameter, [&](const at::Tensor& sum, bool add) {
    if (gradient.is_same(sum)) return;
    TERATRON_ASSERT(!gradient.is_alias_of(sum), "{}: gradient aliases main_grad", parameter.name);
    if (add) {
      sum.add_(gradient);
    } else {
      sum.copy_(gradient);
    }
  });
}

void accumulate_weight_grad(Parameter& parameter, const OutputGradient& dy, const at::Tensor& x) {
  accumulate_grad(parameter,
                  [&](at::Tensor sum, bool add) { linear_weight_gradient_(std::move(sum), dy, x, add); });
}

at::Tensor grad_anchor(std::initializer_list<const Parameter*> parameters) {
  at::Tensor anchor;
  for (const Parameter* parameter : parameters) {
    if (parameter && (!anchor.defined() || parameter->options.trainable)) anchor = parameter->tensor;
  }
  return anchor;
}

void freeze(Parameter& parameter) {
  TERATRON_ASSERT(!parameter.main_grad.defined(), "{} has a gradient already", parameter.name);
  parameter.options.trainable = false;
  parameter.tensor.requires_grad_(false);
}

at::Tensor autograd_tensor(Parameter& parameter) {
  register_use(parameter);
  return ParameterFunction::apply(parameter.tensor, &parameter);
}

ParameterSet::ParameterSet(const Options& options)
    : options_(options),
      fp8_(options.fp8 ? std::make_unique<Fp8Scaling>(*options.fp8, options.device) : nullptr) {
  if (!fp8_) return;
  on_step_end([this](const Mesh& mesh) { fp8_->update(mesh.group(replica_axes | Axis::tp)); });
}

Parameter& ParameterSet::create(std::string name, const ParameterOptions& options) {
  TERATRON_ASSERT(find(name) == nullptr, "two parameters named {}", name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = std::move(name);
  by_name_.emplace(parameter.name, &parameter);
  parameter.options = options;
  const auto tensor_options =
      at::TensorOptions().dtype(options.dtype.value_or(options_.dtype)).device(options_.device);
  if (options_.aliases) {
    parameter.tensor = at::empty({}, tensor_options).expand(options.shard.local_shape());
    return parameter;
  }
  parameter.tensor = at::empty(options.shard.local_shape(), tensor_options);
  initialize(parameter, options_.seed);
  parameter.tensor.requires_grad_(true);
  if (!options.trainable) freeze(parameter);
  return parameter;
}

Parameter* ParameterSet::find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void ParameterSet::alias(ParameterSet& other) {
  for (Parameter& parameter : parameters_) {
    const Parameter* const source = other.find(parameter.name);
    TERATRON_ASSERT(source != nullptr && source->tensor.sizes() == parameter.tensor.sizes() &&
                        source->tensor.scalar_type() == parameter.tensor.scalar_type(),
                    "parameter {} has no counterpart", parameter.name);
    parameter.tensor = source->tensor.detach();
  }
  for (Buffer& buffer : buffers_) {
    const auto source = std::find_if(other.buffers_.begin(), other.buffers_.end(),
                                     [&](const Buffer& b) { return b.name == buffer.name; });
    TERATRON_ASSERT(source != other.buffers_.end(), "buffer {} has no counterpart", buffer.name);
    buffer.tensor.set_(source->tensor);  // layers hold the tensor
  }
}

int64_t ParameterSet::numel() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.tensor.numel();
  return total;
}

std::vector<Buffer> ParameterSet::buffers() {
  std::vector<Buffer> all = buffers_;
  if (!fp8_) return all;
  for (const Fp8Scaling::State& state : fp8_->state()) {
    all.push_back({.name = state.name,
                   .shard = Shard::replicated(state.shape),
                   .tensor = state.values,
                   .kind = Buffer::Kind::training});
  }
  return all;
}

void ParameterSet::end_step(const Mesh& mesh) const {
  for (const auto& update : updates_) update(mesh);
}

void ParameterSet::on_loaded(bool training_state) {
  if (!fp8_) return;
  training_state ? fp8_->on_state_loaded() : fp8_->invalidate_weights();
}

Scope Scope::operator/(std::string_view name) const {
  Scope inner = *this;
  inner.prefix_ = full_name(name);
  return inner;
}

Scope Scope::with_fp8() const {
  Scope same = *this;
  same.fp8_ = set_->fp8();
  return same;
}

Scope Scope::frozen() const {
  Scope same = *this;
  same.trainable_ = false;
  return same;
}

Scope Scope::replicated_over(AxisSet axes) const {
  Scope same = *this;
  same.replicated_over_ = axes;
  return same;
}

Scope Scope::without_lora() const {
  Scope same = *this;
  same.adapts_ = false;
  return same;
}

Parameter& Scope::parameter(std::string_view name, const ParameterOptions& options) const {
  ParameterOptions mine = options;
  mine.replicated_over = replicated_over_.value_or(options.replicated_over);
  mine.trainable = options.trainable && trainable_;
  return set_->create(full_name(name), mine);
}

std::string Scope::full_name(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name);
}

}  // namespace teratron
