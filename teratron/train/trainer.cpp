#include "teratron/train/trainer.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/plan/model_shape.h"
#include "teratron/train/device/device.h"
#include "teratron/train/engine_options.h"

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

std::unique_ptr<TrainStep> make_step(const Registry& registry, const Registry::Run& run) {
  return registry.train_step ? registry.train_step(run) : std::make_unique<TrainStep>();
}

}  // namespace

Arguments with_epochs(const Arguments& args, const Registry& registry, const Tokenizer& tokenizer,
                      const Mesh& mesh) {
  if (!args.num_train_epochs) return args;
  Arguments resolved = args;
  const int64_t epoch = samples_per_epoch({args, tokenizer, mesh}, registry);
  int64_t samples = 0;
  if (__builtin_mul_overflow(epoch, *args.num_train_epochs, &samples) || samples < *args.global_batch_size) {
    throw config_error(
        {.what = fmt::format("num_train_epochs = {} of {} samples is not a number of steps of {} samples",
                             *args.num_train_epochs, epoch, *args.global_batch_size),
         .where = "--num-train-epochs",
         .fix = "Use more data, or another number of epochs"});
  }
  resolved.train_iters = samples / *args.global_batch_size;
  if (!resolved.lr_decay_iters) resolved.lr_decay_iters = resolved.train_iters;
  return resolved;
}

Training::Training(const Arguments& args, const Mesh& mesh, const Registry& registry)
    : mesh_(mesh),
      device_(choose_device(args)),
      tokenizer_(build_tokenizer(tokenizer_options(args))),
      registry_(registry),
      args_(with_epochs(args, registry_, *tokenizer_, mesh_)),
      model_(gpt_config(args_, tokenizer_->vocab_size())),
      decoupled_(decoupled_group(args_)),
      step_(make_step(registry_, {args_, *tokenizer_, mesh_})),
      timers_(make_timers(args_, device_)),
      state_{.scheduler = lr_scheduler(args_), .scaler = loss_scaler(args_)},
      batches_(batch_schedule(args_)) {
  if (device_.is_cuda()) check_fp8_on(args_, device_name(device_), compute_capability(device_));
  check_graphs_on(args_, device_);
  if (args_.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
  announce();
  if (args_.save) {
    check_save_directory(*args_.save, *mesh_.world().communicator);
    if (mesh_.rank() == 0) lock_ = std::make_unique<RunLock>(*args_.save, RunLockOptions{});
  }
  {
    const auto timed = timers_->scope("model-and-optimizer-setup");
    TrainerOptions options = trainer_options(args_, model_, device_);
    options.step = step_.get();
    if (registry_.model) {
      options.provider = [this](const ModelPart& part) {
        return registry_.model({args_, *tokenizer_, mesh_}, part);
      };
    }
    options.timers = timers_.get();
    trainer_ = std::make_unique<Trainer>(options, mesh_);
  }
  if (mesh_.group({Axis::dp, Axis::cp}).rank == 0) {
    print(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
          mesh_.group(Axis::tp).rank, mesh_.group(Axis::pp).rank, trainer_->parameters().numel());
    print(" > rank ({}, {}): {}", mesh_.group(Axis::tp).rank, mesh_.group(Axis::pp).rank,
          to_string(trainer_->memory()));
  }
  const auto timed = timers_->scope("train/valid/test-data-iterators-setup");
  data_ = std::make_unique<RunData>(Registry::Run{args_, *tokenizer_, mesh_}, registry_, device_);
}

// The lines with which Megatron-LM's programs start.
void Training::announce() const {
  if (mesh_.rank() != 0) return;
  const std::vector<int64_t>& ramp = args_.rampup_batch_size;
  if (ramp.empty()) {
    print("setting number of micro-batches to constant {}", batches_.at(0).microbatches);
  } else {
    print(
        "will use batch size rampup starting from global batch size {} to global batch size {} with batch "
        "size "
        "increments {} over {} samples.",
        ramp[0], *args_.global_batch_size, ramp[1], ramp[2]);
  }
  if (!args_.skip_train && (args_.train_samples || args_.num_train_epochs)) {
    print("setting training iterations to {}", train_iters());
  }
  print("> setting random seeds to {} ...", args_.seed);
  print(" > padded vocab (size: {}) with {} dummy tokens (new size: {})", model_.vocabulary,
        model_.padded_vocabulary - model_.vocabulary, model_.padded_vocabulary);
  if (!args_.skip_train) print("> learning rate decay style: {}", args_.lr_decay_style);
}

int64_t Training::train_iters() const {
  return args_.train_iters.value_or(batches_.iterations_for(args_.train_samples.value_or(0)));
}

std::unique_ptr<BatchSource> Training::open(Split split) const {
  const int64_t consumed = split == Split::train   ? state_.consumed_train_samples
                           : split == Split::valid ? state_.consumed_valid_samples
                                                   : 0;
  return data_->open(split, consumed);
}

StepMetrics Training::next_step_metrics(const BatchSize& batch) const {
  const BatchShape shape{batch.running, args_.seq_length.value()};
  return {.iteration = state_.iteration + 1,
          .consumed_samples = state_.consumed_train_samples + batch.running,
          .skipped_samples = state_.skipped_train_samples,
          .global_batch_size = batch.running,
          .tokens = batch.running * args_.seq_length.value(),
          .flops = training_flops(model_shape(model_), shape),
          .flops_full = training_flops(model_shape(model_), shape, FlopsConvention::full)};
}

void Training::add_learning_rates(StepMetrics& metrics) const {
  metrics.learning_rate = state_.scheduler.lr();
  if (decoupled_) metrics.decoupled_learning_rate = state_.scheduler.lr(*decoupled_);
}

IssuedStep Training::issue(const MicroBatches& microbatches, int64_t stop_request) {
  set_fault_context(mesh_.rank(), state_.iteration + 1);
  const BatchSize batch = batch_size();
  StepMetrics metrics = next_step_metrics(batch);
  Optimizer::Hyperparameters hyper{.lr = state_.scheduler.lr(),
                                   .weight_decay = state_.scheduler.wd(),
                                   .loss_scale = state_.scaler.scale()};
  if (decoupled_) hyper.decoupled_lr = state_.scheduler.lr(*decoupled_);
  BadStep made_from{.iteration = metrics.iteration,
                    .plan = {.microbatches = batch.microbatches,
                             .hyper = hyper,
                             .stop_request = stop_request,
                             .progress = saving_ ? saving_->writer->progress() : 0}};
  const auto kept = [&](int64_t index) {
    MicroBatch microbatch = microbatches(index);
    if (stops_at_nan()) made_from.batches.push_back(microbatch);
    return microbatch;
  };
  StepInFlight numbers = trainer_->train_step(kept, made_from.plan);
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  state_.floating_point_operations += metrics.flops;
  if (!must_read_numbers()) state_.scheduler.step(batch.running);
  add_learning_rates(metrics);  // as in Megatron-LM's log: what the next step will use
  return {std::move(numbers), std::move(metrics), std::move(made_from)};
}

bool Training::skips_next() const {
  const std::vector<int64_t>& named = args_.iterations_to_skip;
  return std::find(named.begin(), named.end(), state_.iteration) != named.end();
}

StepMetrics Training::skip(const MicroBatches& microbatches) {
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

void Training::stop_at_nan(const StepNumbers& numbers, const IssuedStep& step) {
  const std::string findings =
      examine(*trainer_, step.made_from, args_.run_dir.value_or(args_.save.value_or("")));
  const StepMetrics& metrics = step.metrics;
  const Fault fault(
      fmt::format("loss {} and gradient norm {} at iteration {}: the weights were left as they were after "
                  "iteration {}. {} Lower --lr, lengthen the warm-up or look at the data from sample {} on; "
                  "--max-nan-iterations lets so many such steps in a row be skipped, and "
                  "--no-check-for-nan-in-loss-and-grad trains on regardless",
                  numbers.loss, numbers.grad_norm, metrics.iteration, metrics.iteration - 1 - nan_iterations_,
                  findings, metrics.consumed_samples - metrics.global_batch_size),
      ExitCode::numerics);
  try {
    finish_save();  // what was trained before is sound
  } catch (const std::exception& error) {
    warn("the checkpoint that was being saved is lost: {}", error.what());
  }
  throw Fault(fault);
}

bool Training::was_skipped(const StepNumbers& numbers, const IssuedStep& step) {
  if (args_.fp16) return numbers.nonfinite;
  if (!args_.check_for_nan_in_loss_and_grad) return false;
  if (!numbers.nonfinite) {
    nan_iterations_ = 0;
    return false;
  }
  if (nan_iterations_ == args_.max_nan_iterations) stop_at_nan(numbers, step);
  ++nan_iterations_;
  if (mesh_.rank() == 0) {
    warn("loss {} and gradient norm {} at iteration {}: the step is skipped ({} of at most {} in a row)",
         numbers.loss, numbers.grad_norm, step.metrics.iteration, nan_iterations_, args_.max_nan_iterations);
  }
  return true;
}

FinishedStep Training::absorb(IssuedStep step) {
  const StepNumbers numbers = step.numbers.resolve();
  save_progress_ = numbers.progress;
  StepMetrics& metrics = step.metrics;
  metrics.skipped = was_skipped(numbers, step);
  if (must_read_numbers()) {
    if (!metrics.skipped) state_.scheduler.step(metrics.global_batch_size);
    add_learning_rates(metrics);
  }
  if (!metrics.skipped) {
    state_.optimizer_steps += 1;
    metrics.grad_norm = numbers.grad_norm;
  }
  state_.scaler.update(metrics.skipped);
  metrics.loss_scale = state_.scaler.scale();
  metrics.losses = named_losses(numbers);
  metrics.device_seconds = numbers.seconds;
  if (args_.log_num_zeros_in_grad) metrics.num_zeros = numbers.num_zeros;
  if (args_.log_params_norm) metrics.params_norm = numbers.parameter_norm;
  return {numbers, std::move(metrics)};
}

Losses Training::named_losses(const StepNumbers& numbers) const {
  Losses losses = {{"lm loss", numbers.loss}};
  const std::vector<std::string> names = step_->metric_names();
  for (size_t i = 0; i < names.size(); ++i) losses.emplace_back(names[i], numbers.metrics.at(i));
  return losses;
}

FinishedStep Training::train_step(const MicroBatches& microbatches) {
  if (skips_next()) return {{}, skip(microbatches)};
  FinishedStep done = absorb(issue(microbatches));
  continue_save();
  return done;
}

MicroBatches Training::from(BatchSource& source) const {
  return [this, &source](int64_t) {
    const auto timed = timers_->scope("batch-generator", 2);
    return step_->get_batch(source);
  };
}

FinishedStep Training::train_step(BatchSource& source) {
  return train_step(from(source));
}

StepNumbers Training::eval_step(BatchSource& source, int64_t steps) {
  return trainer_->evaluate(from(source), steps * batch_size().microbatches);
}

at::Tensor Training::average(const at::Tensor& tensor) const {
  const Group& group = mesh_.group({Axis::dp, Axis::cp});
  at::Tensor mean = tensor.detach().clone().contiguous();
  group.communicator->all_reduce(mean, ReduceOp::sum).wait();
  return mean.div_(static_cast<double>(group.size));
}

at::Tensor Training::gather(const at::Tensor& tensor) const {
  const Group& group = mesh_.group(Axis::dp);
  const at::Tensor mine = tensor.detach().contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.at(0) *= group.size;
  const at::Tensor all = at::empty(shape, mine.options());
  group.communicator->all_gather(all, mine).wait();
  return all;
}

}  // namespace teratron
