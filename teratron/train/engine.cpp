#include "teratron/train/engine.h"

#include <chrono>
#include <map>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/pipeline/executor.h"
#include "teratron/train/device/microbatch_graphs.h"

namespace teratron {

namespace {

enum NumberIndex : int64_t {
  loss_sum,
  token_count,
  grad_norm,
  found_inf,
  zeros,
  params_norm,
  stop,
  behind,
  numbers
};

// The micro-batches of a pass, read in order and kept until the last chunk has used them.
class Window {
 public:
  Window(const MicroBatches& source, bool training) : source_(source), training_(training) {}

  const MicroBatch& at(int64_t index) {
    for (; next_ <= index; ++next_) {
      MicroBatch batch = source_(next_);
      batch.training = training_;
      held_.emplace(next_, std::move(batch));
    }
    return held_.at(index);
  }
  void drop(int64_t index) { held_.erase(index); }

 private:
  const MicroBatches& source_;
  bool training_;
  int64_t next_ = 0;
  std::map<int64_t, MicroBatch> held_;
};

PipelineLayout layout_or_single(const TrainerOptions& options) {
  return options.layout.parts.empty() ? pipeline_layout({.layers = options.model.layers}) : options.layout;
}

std::unique_ptr<Model> make_gpt(const ModelPart& part) {
  return std::make_unique<GPT>(part.parameters, part.config, part.stage, part.parallel);
}

bool is_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return at::isfinite(tensor).all().item<bool>();
}

at::Tensor or_zero(const at::Tensor& value, const at::Tensor& like) {
  return value.defined() ? value.to(like.scalar_type()).view({1}) : at::zeros_like(like);
}

}  // namespace

struct StepEnd {
  std::chrono::steady_clock::time_point host = std::chrono::steady_clock::now();
  std::optional<c10::Event> device = std::nullopt;  // what it is on a GPU

  double seconds_since(const StepEnd& before) const {
    return device ? 1e-3 * before.device->elapsedTime(*device)
                  : std::chrono::duration<double>(host - before.host).count();
  }
};

StepInFlight::StepInFlight(const at::Tensor& device_numbers, std::shared_ptr<const StepEnd> before)
    : before_(std::move(before)) {
  auto end = std::make_shared<StepEnd>();
  end_ = end;
  if (device_numbers.is_cpu()) {
    host_ = device_numbers;
    return;
  }
  host_ = at::empty(device_numbers.sizes(), device_numbers.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(device_numbers, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(device_numbers.device().type());
  end->device.emplace(device_numbers.device().type(), c10::EventFlag::BACKEND_DEFAULT);  // has a time
  end->device->record(guard.getStream(device_numbers.device()));
}

StepNumbers StepInFlight::resolve() {
  if (end_->device) end_->device->synchronize();
  const auto* values = host_.const_data_ptr<double>();
  const double count = std::max(values[token_count], 1.0);
  std::vector<double> metrics;
  for (int64_t i = numbers; i < host_.numel(); ++i) metrics.push_back(values[i] / count);
  return {.loss = values[loss_sum] / count,
          .tokens = static_cast<int64_t>(values[token_count]),
          .grad_norm = values[grad_norm],
          .nonfinite = values[found_inf] != 0.0,
          .num_zeros = static_cast<int64_t>(values[zeros]),
          .parameter_norm = values[params_norm],
          .stop_request = static_cast<int64_t>(values[stop]),
          .progress = -static_cast<int64_t>(values[behind]),
          .seconds = before_ ? end_->seconds_since(*before_) : 0.0,
          .metrics = std::move(metrics)};
}

std::string to_string(const StateMemory& memory) {
  const auto count = static_cast<double>(std::max<int64_t>(memory.parameters, 1));
  const int64_t all = memory.weights + memory.gradients + memory.optimizer;
  return fmt::format(
      "memory of weights, gradients and optimizer: {:.1f} + {:.1f} + {:.1f} = {:.1f} bytes per parameter, "
      "{:.3g} GB",
      static_cast<double>(memory.weights) / count, static_cast<double>(memory.gradients) / count,
      static_cast<double>(memory.optimizer) / count, static_cast<double>(all) / count,
      static_cast<double>(all) * 1e-9);
}

Trainer::Trainer(const TrainerOptions& options, const Mesh& mesh)
    : options_(options),
      step_(options.step ? *options.step : default_step_),
      mesh_(mesh),
      parameters_(
          {.dtype = options.dtype, .device = options.device, .seed = options.seed, .fp8 = options.fp8}) {
  options_.layout = layout_or_single(options);
  const Group& stages = mesh.group(Axis::pp);
  TERATRON_ASSERT(options_.layout.stages == stages.size, "a layout of {} stages on {}",
                  options_.layout.stages, stages.size);
  TensorParallel parallel{mesh.group(Axis::tp), options.sequence_parallel};
  if (!options.overlap_tensor_parallel) {
    parallel.group.communicator = waiting_communicator(parallel.group.communicator);
  }
  const ModelProvider make = options.provider ? options.provider : make_gpt;
  std::vector<int64_t> sizes;
  for (const StageSpec& spec : options_.layout.of_stage(stages.rank)) {
    const auto before = static_cast<int64_t>(parameters_.all().size());
    chunks_.push_back(make({parameters_, options.model, spec, parallel}));
    sizes.push_back(static_cast<int64_t>(parameters_.all().size()) - before);
  }
  std::vector<Parameter*> all;
  for (Parameter& parameter : parameters_.all()) all.push_back(&parameter);
  buffer_ = std::make_unique<FlatBuffer>(
      all, FlatBuffer::Options{.data_parallel = mesh.group(Axis::dp),
                               .sharded = options.sharded_optimizer,
                               .bucket_size = options.bucket_size,
                               .average_in_collective = options.average_in_collective,
                               .reduce_in_bf16 = options.reduce_in_bf16,
                               .overlap_gather = options.overlap_param_gather,
                               .chunks = sizes});
  optimizer_ = std::make_unique<Optimizer>(*buffer_, mesh, options.optimizer);
  open_links(mesh, at::TensorOptions().dtype(options.dtype).device(options.device));
  if (options.graphs_after == 0) return;
  TERATRON_ASSERT(stages.size == 1 && parallel.group.size == 1, "graphs of what {} x {} ranks do together",
                  stages.size, parallel.group.size);
  graphs_ = std::make_unique<MicrobatchGraphs>(parameters_, options.graphs_after);
}

Trainer::~Trainer() = default;

StateMemory Trainer::memory() const {
  return {.parameters = parameters_.numel(),
          .weights = static_cast<int64_t>(buffer_->parameters().nbytes()),
          .gradients = static_cast<int64_t>(buffer_->gradients().nbytes()),
          .optimizer = optimizer_->state_bytes()};
}

at::Tensor Trainer::forward(Model& chunk, const at::Tensor& input, const MicroBatch& batch, LossSum& sum) {
  const Activations output = chunk.forward({input}, batch);
  if (!chunk.stage().head) return output.hidden_SBH;
  const StepLoss result = step_.forward_step(chunk, output, batch);
  TERATRON_ASSERT(static_cast<int64_t>(result.metrics.size()) == sum.metrics.numel(),
                  "the train step gave {} metrics and named {}", result.metrics.size(), sum.metrics.numel());
  sum.loss.add_(result.loss.detach());
  sum.tokens.add_(result.count.detach());
  for (int64_t i = 0; i < sum.metrics.numel(); ++i) {
    sum.metrics.narrow(0, i, 1).add_(result.metrics[static_cast<size_t>(i)].detach());
  }
  return options_.per_token_loss ? result.loss : result.loss / result.count.detach().clamp_min(1.0);
}

at::Tensor Trainer::forward_logits(Model& chunk, const at::Tensor& input, const MicroBatch& batch,
                                   at::Tensor& logits) {
  const Activations output = chunk.forward({input}, batch);
  if (!chunk.stage().head) return output.hidden_SBH;
  logits = gather(chunk.logits(output), 2, mesh_.group(Axis::tp)).narrow(2, 0, options_.model.vocabulary);
  return logits;
}

Trainer::LossSum Trainer::zero_sum() const {
  const at::TensorOptions f64 = at::TensorOptions().dtype(at::kDouble).device(options_.device);
  const auto metrics = static_cast<int64_t>(step_.metric_names().size());
  return {at::zeros({1}, f64), at::zeros({1}, f64), at::zeros({metrics}, f64)};
}

MessageShape Trainer::message_shape(const MicroBatch& batch) const {
  const int64_t cuts = options_.sequence_parallel ? mesh_.group(Axis::tp).size : 1;
  const at::ScalarType dtype = options_.model.fp32_residual ? at::kFloat : options_.dtype;
  return {.sizes = {batch.positions_SB.size(0) / cuts, batch.positions_SB.size(1), options_.model.hidden},
          .options = at::TensorOptions().dtype(dtype).device(options_.device)};
}

Trainer::LossSum Trainer::run(const MicroBatches& microbatches, const Pass& pass) {
  LossSum sum = zero_sum();
  run_onto(sum, microbatches, pass);
  return sum;
}

void Trainer::run_onto(LossSum& sum, const MicroBatches& microbatches, const Pass& pass) {
  Window window(microbatches, pass.training);
  const auto last_chunk = static_cast<int64_t>(chunks_.size()) - 1;
  const auto forward_of = [&](const Action& action, const at::Tensor& input) {
    Model& chunk = *chunks_[action.chunk];
    const MicroBatch& batch = window.at(action.microbatch);
    const auto timed = Timers::scope(pass.captured ? nullptr : options_.timers, "forward-compute", 2);
    const at::Tensor output =
        pass.logits ? forward_logits(chunk, input, batch, *pass.logits) : forward(chunk, input, batch, sum);
    if (action.chunk == last_chunk) window.drop(action.microbatch);
    return chunk.stage().head && pass.scale.defined() ? output * pass.scale : output;
  };
  const auto before_backward = [&](const Action& action) {
    if (pass.reduces && action.microbatch == pass.microbatches - 1)
      buffer_->expect_last_microbatch(action.chunk);
  };
  const Actions actions = schedule(mesh_.group(Axis::pp).rank, {.stages = options_.layout.stages,
                                                                .chunks = options_.layout.chunks,
                                                                .microbatches = pass.microbatches,
                                                                .group = options_.microbatch_group,
                                                                .forward_only = !pass.training,
                                                                .early_receives = options_.overlap_p2p});
  run_schedule(actions, mesh_.pipeline_links(), {forward_of, before_backward}, message_shape(window.at(0)));
}

// Only the last stage has losses; everybody gets to know them.
void Trainer::reduce(LossSum& sum) const {
  const Group& group = mesh_.group({Axis::pp, Axis::dp});
  if (group.size == 1) return;
  const at::Tensor all = at::cat({sum.loss, sum.tokens, sum.metrics});
  group.communicator->all_reduce(all, ReduceOp::sum).wait();
  sum = {all.narrow(0, 0, 1), all.narrow(0, 1, 1), all.narrow(0, 2, sum.metrics.numel())};
}

// Of each micro-batch in backward: f64, so that the product has the loss' type's own rounding. A tensor, as graphs keep
// numbers.
at::Tensor Trainer::loss_scale(const StepPlan& plan) const {
  const double share = buffer_->gradient_scale() / static_cast<double>(plan.microbatches);
  const double scale = plan.hyper.loss_scale * (options_.per_token_loss ? 1.0 : share);
  return at::full({}, scale, at::TensorOptions().dtype(at::kDouble).device(options_.device));
}

Trainer::LossSum Trainer::forward_backward(const MicroBatches& microbatches, const StepPlan& plan) {
  const auto timed = Timers::scope(options_.timers, "forward-backward", 1);
  if (graphs_ && graphs_->begin_step()) return replay(microbatches, plan);
  return run(microbatches, {.microbatches = plan.microbatches, .scale = loss_scale(plan)});
}

// Every micro-batch is a pass of its own.
Trainer::LossSum Trainer::replay(const MicroBatches& microbatches, const StepPlan& plan) {
  buffer_->finish_gather();
  if (!kept_.scale.defined()) kept_ = {zero_sum(), loss_scale(plan)};
  kept_.scale.copy_(loss_scale(plan));
  for (const at::Tensor& sum : {kept_.sum.loss, kept_.sum.tokens, kept_.sum.metrics}) sum.zero_();
  const auto body = [this](const MicroBatch& batch) {
    run_onto(kept_.sum, [&batch](int64_t) { return batch; },
             {.scale = kept_.scale, .reduces = false, .captured = true});
  };
  for (int64_t i = 0; i < plan.microbatches; ++i) graphs_->run(microbatches(i), i, body);
  return kept_.sum;
}

StepInFlight Trainer::train_step(const MicroBatches& microbatches, const StepPlan& plan) {
  buffer_->start_step();
  LossSum sum = forward_backward(microbatches, plan);
  {
    const auto timed = Timers::scope(options_.timers, "all-grads-sync", 1);
    buffer_->finish_reduction();
  }
  reduce(sum);
  Optimizer::Hyperparameters hyper = plan.hyper;
  hyper.loss = sum.loss;
  if (options_.per_token_loss) hyper.count = sum.tokens.clamp_min(1.0);
  const auto timed = Timers::scope(options_.timers, "optimizer", 1);
  const StepReport step = optimizer_->step(hyper);
  if (Fp8Scaling* fp8 = parameters_.fp8()) fp8->update(mesh_.group({Axis::tp, Axis::cp, Axis::dp}));
  StepInFlight issued = report(sum, step, plan);
  last_end_ = issued.end();
  return issued;
}

StepInFlight Trainer::report(const LossSum& sum, const StepReport& step, const StepPlan& plan) const {
  const at::Tensor parameter_norm =
      options_.report_parameter_norm ? optimizer_->parameter_norm() : at::Tensor();
  // One message: the greatest request, and as a negative number the least progress.
  const at::Tensor agreed = at::empty({2}, sum.loss.options());
  agreed[0].fill_(static_cast<double>(plan.stop_request));
  agreed[1].fill_(static_cast<double>(-plan.progress));
  const Group& world = mesh_.world();
  if (world.size > 1) world.communicator->all_reduce(agreed, ReduceOp::max).wait();
  return StepInFlight(
      at::cat({sum.loss, sum.tokens, step.grad_norm, or_zero(step.found_inf, sum.loss),
               or_zero(step.num_zeros, sum.loss), or_zero(parameter_norm, sum.loss), agreed, sum.metrics}),
      last_end_);
}

StepNumbers Trainer::evaluate(const MicroBatches& microbatches, int64_t count) {
  const at::NoGradGuard no_grad;
  LossSum sum = run(microbatches, {.microbatches = count, .training = false});
  reduce(sum);
  return StepInFlight(
             at::cat({sum.loss, sum.tokens, at::zeros({numbers - 2}, sum.loss.options()), sum.metrics}))
      .resolve();
}

std::optional<Trainer::NonFinite> Trainer::find_nonfinite(const MicroBatches& microbatches,
                                                          const StepPlan& plan) {
  std::optional<NonFinite> found;
  const auto look = [&found](const std::string& part, const at::Tensor& output, int64_t first_sample) {
    if (!found && !is_finite(output)) found = {.part = part, .first_sample = first_sample};
  };
  for (const auto& chunk : chunks_) chunk->observe(look);
  buffer_->start_step();
  const LossSum sum =
      run(microbatches, {.microbatches = plan.microbatches, .scale = loss_scale(plan), .reduces = false});
  for (const auto& chunk : chunks_) chunk->observe(nullptr);
  if (!found && !is_finite(sum.loss)) found = {.part = "the loss"};
  for (const FlatBuffer::Entry& entry : buffer_->entries()) {  // in the order of backward
    if (found) break;
    const Parameter& parameter = *entry.parameter;
    if (!parameter.main_grad_is_void && !is_finite(parameter.main_grad))
      found = {.part = parameter.name, .gradient = true};
  }
  return found;
}

at::Tensor Trainer::logits(const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  at::Tensor logits;
  run([&](int64_t) { return batch; }, {.training = false, .logits = &logits});
  return logits;
}

}  // namespace teratron
