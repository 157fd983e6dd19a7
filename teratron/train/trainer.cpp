#include "teratron/train/trainer.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/device/device.h"
#include "teratron/plan/flops.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/engine/engine_options.h"
#include "teratron/train/guards/nonfinite.h"

namespace teratron {

namespace {

std::unique_ptr<Timers> make_timers(const Arguments& args, at::Device device) {
  const auto level = static_cast<int>(args.timing_log_level);
  if (device.is_cpu() || level == 0) return std::make_unique<Timers>(level);
  return std::make_unique<Timers>(level, [device] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeDevice(device.index());
  });
}

std::unique_ptr<TrainStep> make_step(const Registry& registry, const Registry::Context& context) {
  return registry.train_step ? registry.train_step(context) : std::make_unique<TrainStep>();
}

}  // namespace

Trainer::Trainer(const Arguments& args, const Mesh& mesh, const JobModel& model)
    : mesh_(mesh),
      device_(choose_device(args)),
      tokenizer_(build_tokenizer(tokenizer_options(args))),
      family_(model.family),
      args_(with_epochs({args, *tokenizer_, mesh_}, family_, epoch_)),
      decoupled_(decoupled_group(args_)),
      step_(make_step(model.registry, {args_, *tokenizer_, mesh_})),
      finetuning_(model.registry.finetuning),
      timers_(make_timers(args_, device_)),
      state_{.scheduler = lr_scheduler(args_), .scaler = loss_scaler(args_)},
      batches_(batch_schedule(args_)),
      train_iters_(planned_iters()) {
  if (device_.is_cuda()) check_fp8_on(args_, device_name(device_), compute_capability(device_));
  check_graphs_on(args_, device_);
  if (device_.is_cuda()) check_expert_graphs_on(args_, device_name(device_), compute_capability(device_));
  if (args_.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
  const ModelPlan plan = family_.plan(args_, tokenizer_->vocab_size());
  print_setup(plan);
  if (args_.save) check_save_directory(*args_.save, *mesh_.world().communicator);
  if (is_first_rank()) lock_directories();
  {
    const auto timed = timers_->scope("model-and-optimizer-setup");
    EngineOptions options = engine_options(args_, plan, device_);
    options.step = step_.get();
    options.timers = timers_.get();
    removes_padding_ = packs_rows(args_, options);
    engine_ = std::make_unique<TrainEngine>(options, mesh_);
  }
  if (args_.remove_padding == "always" && !removes_padding_ && is_first_rank())
    notice("--remove-padding has no effect: the rows of this training have no padding");
  if (mesh_.replicas().rank == 0) {
    print(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
          mesh_.group(Axis::tp).rank, mesh_.group(Axis::pp).rank, engine_->parameters().numel());
    print(" > rank ({}, {}): {}", mesh_.group(Axis::tp).rank, mesh_.group(Axis::pp).rank,
          to_string(engine_->memory()));
  }
  size_data();
}

void Trainer::size_data() {
  const TrainProgress progress{.train_iters = train_iters_,
                               .iteration = state_.iteration,
                               .consumed_train_samples = state_.consumed_train_samples,
                               .consumed_valid_samples = state_.consumed_valid_samples};
  const TrainData::Source source{split_samples(args_, progress), model().batch, device_, epoch_};
  if (data_ && data_->samples() == source.samples) return;
  const auto timed = timers_->scope("train/valid/test-data-iterators-setup");
  data_ = std::make_unique<TrainData>(Registry::Context{args_, *tokenizer_, mesh_}, family_, source);
}

void Trainer::lock_directories() {
  if (args_.save) locks_.push_back(std::make_unique<JobLock>(*args_.save, JobLockOptions{}));
  if (!args_.run_dir) return;
  make_directories(*args_.run_dir, ExitCode::config);
  std::error_code ignored;
  if (args_.save && std::filesystem::equivalent(*args_.run_dir, *args_.save, ignored)) return;
  locks_.push_back(std::make_unique<JobLock>(*args_.run_dir, JobLockOptions{}));
}

void Trainer::print_batch_steps() const {
  const std::vector<BatchStep> steps = batch_steps(args_);
  print("step batch size schedule ({} steps):", steps.size());
  for (const BatchStep& step : steps) {
    print("  >= {} tokens ({} samples) -> batch_size={}, num_microbatches={}",
          step.samples * *args_.seq_length, step.samples, step.global_batch_size,
          batches_.at(step.samples).microbatches);
  }
}

// Megatron-LM's first lines.
void Trainer::print_setup(const ModelPlan& plan) const {
  if (!is_first_rank()) return;
  const std::vector<int64_t>& ramp = args_.rampup_batch_size;
  if (args_.step_batch_size_schedule) {
    print_batch_steps();
  } else if (ramp.empty()) {
    print("setting number of micro-batches to constant {}", batches_.at(0).microbatches);
  } else {
    print(
        "will use batch size rampup starting from global batch size {} to global batch size {} with batch "
        "size increments {} over {} samples.",
        ramp[0], *args_.global_batch_size, ramp[1], ramp[2]);
  }
  if (!args_.skip_train && (args_.train_samples || args_.num_train_epochs)) {
    print("setting training iterations to {}", train_iters());
  }
  print("> setting random seeds to {} ...", args_.seed);
  print(" > padded vocab (size: {}) with {} dummy tokens (new size: {})", plan.vocabulary,
        plan.padded_vocabulary - plan.vocabulary, plan.padded_vocabulary);
  if (!args_.skip_train) print("> learning rate decay style: {}", args_.lr_decay_style);
}

// A length in samples or epochs ends after the same samples if the batch size changed on the way.
int64_t Trainer::planned_iters() const {
  std::optional<int64_t> samples = args_.train_samples;
  if (args_.num_train_epochs) samples = args_.train_iters.value() * args_.global_batch_size.value();
  if (!samples) return args_.train_iters.value_or(0);
  return state_.iteration + batches_.iterations_for(*samples, state_.consumed_train_samples);
}

std::unique_ptr<BatchSource> Trainer::open(Split split) const {
  if (split == Split::train && args_.step_batch_size_schedule)
    batches_.require_divisible(state_.consumed_train_samples);
  const int64_t consumed = split == Split::train   ? state_.consumed_train_samples
                           : split == Split::valid ? state_.consumed_valid_samples
                                                   : 0;
  return data_->open(split, consumed);
}

StepMetrics Trainer::next_step_metrics(const BatchSize& batch) const {
  const BatchShape shape{batch.running, args_.seq_length.value()};
  const Weights weights = engine_->options().lora ? Weights::frozen : Weights::trained;
  return {.iteration = state_.iteration + 1,
          .consumed_samples = state_.consumed_train_samples + batch.running,
          .skipped_samples = state_.skipped_train_samples,
          .global_batch_size = batch.running,
          .tokens = batch.running * tokens_per_sample(args_),
          .flops = training_flops(model(), shape, FlopsConvention::causal, weights),
          .flops_full = training_flops(model(), shape, FlopsConvention::full, weights)};
}

void Trainer::add_learning_rates(StepMetrics& metrics) const {
  metrics.learning_rate = state_.scheduler.lr();
  if (decoupled_) metrics.decoupled_learning_rate = state_.scheduler.lr(*decoupled_);
}

PendingStep Trainer::launch_step(const MicroBatches& microbatches, int64_t stop_request) {
  set_fault_context(mesh_.rank(), state_.iteration + 1);
  prepare_saves();
  const BatchSize batch = batch_size();
  StepMetrics metrics = next_step_metrics(batch);
  Optimizer::Hyperparameters hyper{.lr = state_.scheduler.lr(),
                                   .weight_decay = state_.scheduler.wd(),
                                   .loss_scale = state_.scaler.scale()};
  if (decoupled_) hyper.decoupled_lr = state_.scheduler.lr(*decoupled_);
  StepInputs inputs{.microbatches = batch.microbatches, .hyper = hyper, .stop_request = stop_request};
  if (saving_) {
    inputs.progress = saving_->writer->progress();
    inputs.before_update = [snapshot = saving_->snapshot] { snapshot->before_update(); };
  }
  PendingStep step = engine_->train_step(microbatches, inputs);
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  state_.floating_point_operations += metrics.flops;
  if (!must_wait_for_result()) state_.scheduler.step(batch.running);
  add_learning_rates(metrics);  // those of the next step, as in Megatron-LM's log
  step.metrics = std::move(metrics);
  return step;
}

bool Trainer::skips_next_step() const {
  const std::vector<int64_t>& skipped = args_.iterations_to_skip;
  return std::find(skipped.begin(), skipped.end(), state_.iteration) != skipped.end();
}

StepMetrics Trainer::skip_step(const MicroBatches& microbatches) {
  const BatchSize batch = batch_size();
  for (int64_t i = 0; i < batch.microbatches; ++i) microbatches(i);
  state_.skipped_train_samples += batch.running;
  StepMetrics metrics = next_step_metrics(batch);
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  metrics.flops = metrics.flops_full = 0.0;
  metrics.skipped = true;
  add_learning_rates(metrics);
  return metrics;
}

void Trainer::stop_at_nan(const StepResult& result, const PendingStep& step) {
  const StepMetrics& metrics = result.metrics;
  const std::string diagnosis =
      diagnose_nonfinite(*engine_, step, metrics.iteration, args_.run_dir.value_or(args_.save.value_or("")));
  const Fault fault(
      fmt::format("loss {} and gradient norm {} at iteration {}: the weights were left as they were after "
                  "iteration {}. {} Lower --lr, lengthen the warm-up or look at the data from sample {} on; "
                  "--max-nan-iterations skips so many such steps in a row, and "
                  "--no-check-for-nan-in-loss-and-grad trains on regardless",
                  result.loss, result.grad_norm, metrics.iteration, metrics.iteration - 1 - nan_iterations_,
                  diagnosis, metrics.consumed_samples - metrics.global_batch_size),
      ExitCode::numerics);
  try {
    finish_save();  // an earlier, sound state
  } catch (const std::exception& error) {
    warn("the checkpoint that was being saved is lost: {}", error.what());
  }
  throw Fault(fault);
}

bool Trainer::was_skipped(const StepResult& result, const PendingStep& step) {
  if (args_.fp16) return result.nonfinite;
  if (!args_.check_for_nan_in_loss_and_grad) return false;
  if (!result.nonfinite) {
    nan_iterations_ = 0;
    return false;
  }
  if (nan_iterations_ == args_.max_nan_iterations) stop_at_nan(result, step);
  ++nan_iterations_;
  if (is_first_rank()) {
    warn("loss {} and gradient norm {} at iteration {}: the step is skipped ({} of at most {} in a row)",
         result.loss, result.grad_norm, result.metrics.iteration, nan_iterations_, args_.max_nan_iterations);
  }
  return true;
}

StepResult Trainer::finish_step(PendingStep step) {
  StepResult result = step.wait();
  save_progress_ = result.progress;
  const auto graphs = engine_->finish(result);
  if (graphs && is_first_rank()) notice("{}", *graphs);
  StepMetrics& metrics = result.metrics;
  metrics.skipped = was_skipped(result, step);
  if (must_wait_for_result()) {
    if (!metrics.skipped) state_.scheduler.step(metrics.global_batch_size);
    add_learning_rates(metrics);
  }
  if (!metrics.skipped) {
    state_.optimizer_steps += 1;
    metrics.grad_norm = result.grad_norm;
  }
  state_.scaler.update(metrics.skipped);
  metrics.loss_scale = state_.scaler.scale();
  metrics.losses = named_losses(result);
  metrics.device_seconds = result.seconds;
  if (model().layer_sums.read) {
    for (const LayerMetrics::Row& row : model().layer_sums.read(result.layer_sums).rows)
      metrics.layers.push_back({row.name, row.layer, row.values});
  }
  if (args_.log_num_zeros_in_grad) metrics.num_zeros = result.num_zeros;
  if (args_.log_params_norm) metrics.params_norm = result.parameter_norm;
  return result;
}

Losses Trainer::losses_of(const StepResult& result) const {
  Losses losses;
  for (size_t i = 0; i < model().losses.size(); ++i)
    losses.emplace_back(model().losses[i], result.losses.at(i));
  return losses;
}

Losses Trainer::metrics_of(const StepResult& result) const {
  Losses metrics;
  const std::vector<std::string> names = step_->metric_names();
  for (size_t i = 0; i < names.size(); ++i) metrics.emplace_back(names[i], result.custom_metrics.at(i));
  return metrics;
}

Losses Trainer::named_losses(const StepResult& result) const {
  Losses all = losses_of(result);
  for (auto& metric : metrics_of(result)) all.push_back(std::move(metric));
  const LayerSums& sums = model().layer_sums;
  if (!sums.read) return all;
  for (auto& loss : sums.read(result.layer_sums).losses) all.push_back(std::move(loss));
  return all;
}

StepResult Trainer::train_step(const MicroBatches& microbatches) {
  if (skips_next_step()) return {.metrics = skip_step(microbatches)};
  StepResult result = finish_step(launch_step(microbatches));
  continue_save();
  return result;
}

MicroBatches Trainer::batches_from(BatchSource& source) const {
  return [this, &source](int64_t) {
    const auto timed = timers_->scope("batch-generator", 2);
    source.remove_padding(removes_padding_ && !engine_->fixes_shapes());
    MicroBatch batch = step_->get_batch(source);
    source.remove_padding(false);  // a custom loop that reads from it expects rows
    return batch;
  };
}

StepResult Trainer::train_step(BatchSource& source) {
  return train_step(batches_from(source));
}

StepResult Trainer::eval_step(BatchSource& source, int64_t steps) {
  return engine_->evaluate(batches_from(source), steps * eval_batch_size().microbatches);
}

std::optional<StepResult> Trainer::evaluate(Split split, const NextPart& next_part) {
  const std::unique_ptr<BatchSource> source = open(split);
  const int64_t count = args_.eval_iters * eval_batch_size().microbatches;
  return engine_->evaluate(batches_from(*source), {count, count}, next_part);
}

std::optional<StepResult> Trainer::evaluate_whole_valid(const NextPart& next_part) {
  const std::unique_ptr<BatchSource> source = data_->open_whole_valid();
  const EvaluationSize size = {.mine = data_->whole_valid_microbatches(mesh_.data_parallel().rank),
                               .most = data_->whole_valid_microbatches(0)};
  return engine_->evaluate(batches_from(*source), size, next_part);
}

at::Tensor Trainer::average(const at::Tensor& tensor) const {
  const Group& group = mesh_.replicas();
  at::Tensor mean = tensor.detach().clone().contiguous();
  group.communicator->all_reduce(mean, ReduceOp::sum).wait();
  return mean.div_(static_cast<double>(group.size));
}

at::Tensor Trainer::gather(const at::Tensor& tensor) const {
  const Group& group = mesh_.data_parallel();
  const at::Tensor mine = tensor.detach().contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.at(0) *= group.size;
  const at::Tensor all = at::empty(shape, mine.options());
  group.communicator->all_gather(all, mine).wait();
  return all;
}

}  // namespace teratron
