#include "teratron/train/training.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/train/checkpoint_settings.h"
#include "teratron/train/device.h"
#include "teratron/train/sinks.h"

namespace teratron {

namespace {

ScheduleLoadRule schedule_rule(const Arguments& args) {
  if (args.override_opt_param_scheduler || args.skip_train) return ScheduleLoadRule::keep_flags;
  if (args.use_checkpoint_opt_param_scheduler) return ScheduleLoadRule::use_checkpoint;
  return ScheduleLoadRule::must_match;
}

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

std::string Training::config_json() const {
  nlohmann::json config = nlohmann::json::parse(to_json(args_));
  config["tokenizer_vocab_size"] = model_.vocabulary;
  // Whoever reads the checkpoint may be in another folder.
  for (const char* const file : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (!config.contains(file) || !config[file].is_string()) continue;
    config[file] = std::filesystem::absolute(config[file].get<std::string>()).lexically_normal().string();
  }
  return config.dump();
}

std::optional<CheckpointInfo> Training::load_from(const std::string& directory, bool weights_only) {
  const auto info =
      load_model(*trainer_, {.directory = directory,
                             .iteration = weights_only ? std::nullopt : args_.ckpt_step,
                             .config = config_json(),
                             .optimizer = !weights_only && !args_.finetune && !args_.no_load_optim,
                             .own = args_.save == directory});
  if (info && mesh_.rank() == 0) {
    print(" loading checkpoint from {} at iteration {}", info->path.string(), info->iteration);
  }
  return info;
}

// --fresh: no later start may pick up what an earlier run has left in the directory.
void Training::set_old_run_aside() {
  const auto aside = set_aside_checkpoints(*args_.save, *mesh_.world().communicator);
  if (aside && mesh_.rank() == 0) {
    notice("--fresh: the checkpoints of the earlier run were moved to {}", aside->string());
  }
}

bool Training::load() {
  if (args_.fresh && args_.save) set_old_run_aside();
  if (args_.fresh || (!args_.load && !args_.pretrained_checkpoint)) return false;
  const bool speaks = mesh_.rank() == 0;
  if (const auto info = args_.load ? load_from(*args_.load, false) : std::nullopt) {
    if (args_.finetune) return true;
    state_.load(info->state, schedule_rule(args_));
    if (args_.no_load_optim) state_.optimizer_steps = 0;
    trainer_->optimizer().set_steps(state_.optimizer_steps);
    saved_iteration_ = args_.save == args_.load ? state_.iteration : -1;
    if (!speaks || args_.skip_train) return true;
    for (const std::string& line : resume_notices(info->config, config_json())) notice_line(line);
    return true;
  }
  if (args_.pretrained_checkpoint) {
    if (load_from(*args_.pretrained_checkpoint, true)) {
      if (speaks) notice("finetuning from the weights of {}", *args_.pretrained_checkpoint);
      return true;
    }
    throw checkpoint_error({.what = "no checkpoint found",
                            .where = *args_.pretrained_checkpoint,
                            .fix = "Correct --pretrained-checkpoint, or leave it out to start anew"});
  }
  if (args_.exit_on_missing_checkpoint) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = *args_.load,
         .fix = "Correct --load, or leave out --exit-on-missing-checkpoint to start anew"});
  }
  if (speaks) warn("no checkpoint in {}: starting from random weights", *args_.load);
  return false;
}

std::optional<SaveMetrics> Training::save() {
  finish_save();
  SaveUnderWay current{.iteration = state_.iteration, .begin = wall_clock()};
  const SaveOptions options{.directory = args_.save.value(),
                            .iteration = state_.iteration,
                            .texts = {config_json(), state_.to_json()},
                            .optimizer = !args_.no_save_optim,
                            .retain_interval = args_.save_retain_interval.value_or(0)};
  if (!args_.async_save) return committed(current, save_model(*trainer_, options));
  current.writer = start_saving_model(*trainer_, options);
  save_progress_ = 0;
  saving_ = std::move(current);
  return std::nullopt;
}

std::optional<SaveMetrics> Training::continue_save() {
  if (!saving_) return std::nullopt;
  SaveUnderWay current = *std::exchange(saving_, std::nullopt);  // one that throws is over
  const auto path = current.writer->advance(save_progress_);
  if (path) return committed(current, *path);
  saving_ = std::move(current);
  return std::nullopt;
}

std::optional<SaveMetrics> Training::finish_save() {
  if (!saving_) return std::nullopt;
  const SaveUnderWay current = *std::exchange(saving_, std::nullopt);
  return committed(current, current.writer->finish());
}

SaveMetrics Training::committed(const SaveUnderWay& save, const std::filesystem::path& path) {
  saved_iteration_ = save.iteration;
  return {.iteration = save.iteration,
          .directory = *args_.save,
          .seconds = wall_clock() - save.begin,
          .bytes = open_checkpoint(path).bytes};
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
  StepInFlight numbers =
      trainer_->train_step(microbatches, {.microbatches = batch.microbatches,
                                          .hyper = hyper,
                                          .stop_request = stop_request,
                                          .progress = saving_ ? saving_->writer->progress() : 0});
  state_.iteration = metrics.iteration;
  state_.consumed_train_samples = metrics.consumed_samples;
  state_.floating_point_operations += metrics.flops;
  if (!must_read_numbers()) state_.scheduler.step(batch.running);
  add_learning_rates(metrics);  // as in Megatron-LM's log: what the next step will use
  return {std::move(numbers), std::move(metrics)};
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

void Training::stop_at_nan(const StepNumbers& numbers, const StepMetrics& metrics) {
  const Fault fault(
      fmt::format("loss {} and gradient norm {} at iteration {}: the weights were left as they were after "
                  "iteration {}. Lower --lr, lengthen the warm-up or look at the data from sample {} on; "
                  "--max-nan-iterations lets so many such steps in a row be skipped, and "
                  "--no-check-for-nan-in-loss-and-grad trains on regardless",
                  numbers.loss, numbers.grad_norm, metrics.iteration, metrics.iteration - 1 - nan_iterations_,
                  metrics.consumed_samples - metrics.global_batch_size),
      ExitCode::numerics);
  try {
    finish_save();  // what was trained before is sound
  } catch (const std::exception& error) {
    warn("the checkpoint that was being saved is lost: {}", error.what());
  }
  throw Fault(fault);
}

bool Training::was_skipped(const StepNumbers& numbers, const StepMetrics& metrics) {
  if (args_.fp16) return numbers.nonfinite;
  if (!args_.check_for_nan_in_loss_and_grad) return false;
  if (!numbers.nonfinite) {
    nan_iterations_ = 0;
    return false;
  }
  if (nan_iterations_ == args_.max_nan_iterations) stop_at_nan(numbers, metrics);
  ++nan_iterations_;
  if (mesh_.rank() == 0) {
    warn("loss {} and gradient norm {} at iteration {}: the step is skipped ({} of at most {} in a row)",
         numbers.loss, numbers.grad_norm, metrics.iteration, nan_iterations_, args_.max_nan_iterations);
  }
  return true;
}

FinishedStep Training::absorb(IssuedStep step) {
  const StepNumbers numbers = step.numbers.resolve();
  save_progress_ = numbers.progress;
  StepMetrics& metrics = step.metrics;
  metrics.skipped = was_skipped(numbers, metrics);
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
