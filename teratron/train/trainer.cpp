#include "teratron/train/trainer.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace teratron {

namespace {

enum NumberIndex : int64_t { loss_sum, token_count, grad_norm, found_inf, zeros, params_norm, stop, numbers };

at::Tensor or_zero(const at::Tensor& value, const at::Tensor& like) {
  return value.defined() ? value.to(like.scalar_type()).view({1}) : at::zeros_like(like);
}

}  // namespace

StepInFlight::StepInFlight(const at::Tensor& device_numbers) {
  if (device_numbers.is_cpu()) {
    host_ = device_numbers;
    return;
  }
  host_ = at::empty(device_numbers.sizes(), device_numbers.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(device_numbers, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(device_numbers.device().type());
  auto event = std::make_shared<c10::Event>(device_numbers.device().type());
  event->record(guard.getStream(device_numbers.device()));
  wait_ = [event] { event->synchronize(); };
}

StepNumbers StepInFlight::resolve() {
  if (wait_) wait_();
  const auto* values = host_.const_data_ptr<double>();
  return {.loss = values[loss_sum] / std::max(values[token_count], 1.0),
          .tokens = static_cast<int64_t>(values[token_count]),
          .grad_norm = values[grad_norm],
          .nonfinite = values[found_inf] != 0.0,
          .num_zeros = static_cast<int64_t>(values[zeros]),
          .parameter_norm = values[params_norm],
          .stop_request = static_cast<int64_t>(values[stop])};
}

Trainer::Trainer(const TrainerOptions& options, const Mesh& mesh)
    : options_(options),
      mesh_(mesh),
      parameters_({.dtype = options.dtype, .device = options.device, .seed = options.seed}) {
  const TensorParallel parallel{mesh.group(Axis::tp), options.sequence_parallel};
  model_ = std::make_unique<GPT>(parameters_, options.model, options.stage, parallel);
  std::vector<Parameter*> all;
  for (Parameter& parameter : parameters_.all()) all.push_back(&parameter);
  buffer_ = std::make_unique<FlatBuffer>(all, FlatBuffer::Options{.data_parallel = mesh.group(Axis::dp),
                                                                  .sharded = options.sharded_optimizer,
                                                                  .bucket_size = options.bucket_size});
  optimizer_ = std::make_unique<Optimizer>(*buffer_, mesh, options.optimizer);
}

Trainer::LossSum Trainer::zero_sum() const {
  const at::Tensor zero = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(options_.device));
  return {zero, zero.clone()};
}

at::Tensor Trainer::forward(const MicroBatch& batch, LossSum& sum) {
  const at::Tensor loss_SB = model_->loss(model_->forward({}, batch), batch);
  const at::Tensor loss = (loss_SB * batch.loss_mask_SB.to(loss_SB.scalar_type())).sum();
  const at::Tensor tokens = batch.loss_mask_SB.sum();
  sum.loss.add_(loss.detach());
  sum.tokens.add_(tokens);
  return loss / tokens.clamp_min(1.0);
}

void Trainer::reduce(LossSum& sum) const {
  const Group& group = mesh_.group(Axis::dp);
  if (group.size == 1) return;
  const at::Tensor both = at::cat({sum.loss, sum.tokens});
  group.communicator->all_reduce(both, ReduceOp::sum).wait();
  sum = {both.narrow(0, 0, 1), both.narrow(0, 1, 1)};
}

StepInFlight Trainer::train_step(const MicroBatches& microbatches, const StepPlan& plan) {
  LossSum sum = zero_sum();
  buffer_->start_step();
  const double scale = plan.hyper.loss_scale / static_cast<double>(plan.microbatches);
  for (int64_t i = 0; i < plan.microbatches; ++i) {
    if (i == plan.microbatches - 1) buffer_->expect_last_microbatch();
    (forward(microbatches(i), sum) * scale).backward();
  }
  buffer_->finish_reduction();
  reduce(sum);
  return report(sum, optimizer_->step(plan.hyper), plan.stop_request);
}

StepInFlight Trainer::report(const LossSum& sum, const StepReport& step, int64_t stop_request) const {
  const at::Tensor parameter_norm =
      options_.report_parameter_norm ? optimizer_->parameter_norm() : at::Tensor();
  const at::Tensor request = at::full_like(sum.loss, static_cast<double>(stop_request));
  const Group& world = mesh_.world();
  if (world.size > 1) world.communicator->all_reduce(request, ReduceOp::max).wait();
  return StepInFlight(
      at::cat({sum.loss, sum.tokens, step.grad_norm, or_zero(step.found_inf, sum.loss),
               or_zero(step.num_zeros, sum.loss), or_zero(parameter_norm, sum.loss), request}));
}

StepNumbers Trainer::evaluate(const MicroBatches& microbatches, int64_t count) {
  const at::NoGradGuard no_grad;
  LossSum sum = zero_sum();
  for (int64_t i = 0; i < count; ++i) {
    MicroBatch batch = microbatches(i);
    batch.training = false;
    forward(batch, sum);
  }
  reduce(sum);
  return StepInFlight(at::cat({sum.loss, sum.tokens, at::zeros({numbers - 2}, sum.loss.options())}))
      .resolve();
}

}  // namespace teratron
