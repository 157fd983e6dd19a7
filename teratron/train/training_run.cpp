#include "teratron/train/training_run.h"

#include <filesystem>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/train/report.h"
#include "teratron/train/run_facts.h"

namespace teratron {

namespace {

ScheduleLoadRule schedule_rule(const Arguments& args) {
  if (args.override_opt_param_scheduler || args.skip_train) return ScheduleLoadRule::keep_flags;
  if (args.use_checkpoint_opt_param_scheduler) return ScheduleLoadRule::use_checkpoint;
  return ScheduleLoadRule::must_match;
}

std::filesystem::path run_directory(const Arguments& args) {
  return args.run_dir.value_or(args.save.value_or(""));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TrainingRun::TrainingRun(const Arguments& args, const Mesh& mesh, const StopSignals& signals)
    : args_(args),
      mesh_(mesh),
      device_(choose_device(args)),
      start_(std::chrono::steady_clock::now()),
      tokenizer_(build_tokenizer(tokenizer_options(args))),
      model_(gpt_config(args, tokenizer_->vocab_size())),
      state_{.scheduler = lr_scheduler(args), .scaler = loss_scaler(args)},
      batches_(batch_schedule(args)),
      signals_(signals) {
  if (args.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
  if (mesh.rank() == 0) {
    print(" > padded vocab (size: {}) with {} dummy tokens (new size: {})", model_.vocabulary,
          model_.padded_vocabulary - model_.vocabulary, model_.padded_vocabulary);
  }
  if (args.save) {
    check_save_directory(*args.save, *mesh.world().communicator);
    if (mesh.rank() == 0) lock_ = std::make_unique<RunLock>(*args.save, RunLockOptions{});
  }
  trainer_ = std::make_unique<Trainer>(trainer_options(args, model_, device_), mesh);
  if (mesh.group({Axis::dp, Axis::cp}).rank == 0) {
    print(" > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}",
          mesh.group(Axis::tp).rank, mesh.group(Axis::pp).rank, trainer_->parameters().numel());
    print(" > rank ({}, {}): {}", mesh.group(Axis::tp).rank, mesh.group(Axis::pp).rank,
          to_string(trainer_->memory()));
  }
  data_ = std::make_unique<RunData>(args, *tokenizer_, device_, mesh);
}

int64_t TrainingRun::train_iters() const {
  return args_.train_iters.value_or(batches_.iterations_for(args_.train_samples.value_or(0)));
}

std::string TrainingRun::config_json() const {
  nlohmann::json config = nlohmann::json::parse(to_json(args_));
  config["tokenizer_vocab_size"] = model_.vocabulary;
  // Whoever reads the checkpoint may be in another folder.
  for (const char* const file : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (config.contains(file) && config[file].is_string())
      config[file] = std::filesystem::absolute(config[file].get<std::string>()).lexically_normal().string();
  }
  return config.dump();
}

void TrainingRun::set_old_run_aside() {
  const auto aside = set_aside_checkpoints(*args_.save, *mesh_.world().communicator);
  if (aside && mesh_.rank() == 0) {
    notice_line(fmt::format("--fresh: the checkpoints of the earlier run were moved to {}", aside->string()));
  }
}

bool TrainingRun::load() {
  if (args_.fresh && args_.save) set_old_run_aside();
  if (!args_.load || args_.fresh) return false;
  const auto info = load_model(*trainer_, {.directory = *args_.load,
                                           .iteration = args_.ckpt_step,
                                           .config = config_json(),
                                           .optimizer = !args_.finetune && !args_.no_load_optim});
  if (!info) {
    if (args_.exit_on_missing_checkpoint) {
      throw checkpoint_error(
          {.what = "no checkpoint found",
           .where = *args_.load,
           .fix = "Correct --load, or leave out --exit-on-missing-checkpoint to start anew"});
    }
    if (mesh_.rank() == 0) warn("no checkpoint in {}: starting from random weights", *args_.load);
    return false;
  }
  if (!args_.finetune) {
    state_.load(info->state, schedule_rule(args_));
    if (args_.no_load_optim) state_.optimizer_steps = 0;
    trainer_->optimizer().set_steps(state_.optimizer_steps);
    saved_iteration_ = args_.save == args_.load ? state_.iteration : -1;
  }
  if (mesh_.rank() == 0) {
    print(" loading checkpoint from {} at iteration {}", info->path.string(), info->iteration);
  }
  return !args_.skip_train && state_.iteration > 0 && state_.iteration >= train_iters();
}

void TrainingRun::open_logs() {
  const RunFacts facts = run_facts({.args = args_,
                                    .model = model_,
                                    .device = device_,
                                    .parameters = trainer_->parameters().numel(),
                                    .train_iters = train_iters(),
                                    .start_iteration = state_.iteration,
                                    .world_size = mesh_.world_size()});
  meter_ = std::make_unique<IntervalMeter>(facts);
  if (!is_logging_rank()) return;
  hub_ = std::make_unique<MetricsHub>();
  hub_->add_now("console", console_sink({.short_format = args_.log_format == "short",
                                         .log_throughput = args_.log_throughput}));
  const std::filesystem::path directory = run_directory(args_);
  if (!directory.empty()) {
    make_directories(directory, ExitCode::config);
    const std::filesystem::path log = directory / "metrics.jsonl";
    // A new run has a log of its own; that of the run before it is kept beside it.
    if (state_.iteration == 0 && std::filesystem::exists(log)) {
      std::filesystem::rename(log, directory / "metrics.previous.jsonl");
    }
    hub_->add_background("metrics.jsonl", jsonl_sink(log));
  }
  if (args_.tensorboard_dir) {
    hub_->add_background("TensorBoard", tensorboard_sink(*args_.tensorboard_dir,
                                                         {.log_interval = args_.tensorboard_log_interval}));
  }
  progress_ = std::make_unique<ProgressBar>(ProgressState{.iteration = state_.iteration,
                                                          .start_iteration = state_.iteration,
                                                          .total = train_iters(),
                                                          .save_interval = args_.save_interval.value_or(0)});
  emit(facts);
}

void TrainingRun::emit(decltype(MetricsEvent::what) what) {
  if (!hub_) return;
  if (progress_) progress_->clear();
  hub_->emit({.wall_time = wall_clock(), .what = std::move(what)});
}

TrainingRun::StopReason TrainingRun::wish() const {
  if (signals_.received() != 0) return StopReason::signal;
  const bool late = args_.exit_duration_in_mins &&
                    seconds_since(start_) > 60.0 * static_cast<double>(*args_.exit_duration_in_mins);
  return late || seen_enough_ ? StopReason::duration : StopReason::none;
}

bool TrainingRun::at_interval(const std::optional<int64_t>& interval) const {
  return interval && state_.iteration % *interval == 0;
}

// The host runs one step ahead of the device, unless what it does next depends on the step's numbers.
bool TrainingRun::must_read_now() const {
  return device_.is_cpu() || args_.fp16 || state_.iteration >= train_iters() ||
         at_interval(args_.log_interval) || at_interval(args_.eval_interval) ||
         at_interval(args_.save_interval) || at_interval(args_.exit_interval);
}

TrainingRun::IssuedStep TrainingRun::issue_step(BatchSource& source) {
  set_fault_context(mesh_.rank(), state_.iteration + 1);
  const BatchSize batch = batches_.at(state_.consumed_train_samples);
  const Optimizer::Hyperparameters hyper{.lr = state_.scheduler.lr(),
                                         .weight_decay = state_.scheduler.wd(),
                                         .loss_scale = state_.scaler.scale()};
  StepInFlight numbers = trainer_->train_step(
      [&](int64_t) { return source.next(); },
      {.microbatches = batch.microbatches, .hyper = hyper, .stop_request = static_cast<int64_t>(wish())});
  state_.iteration += 1;
  state_.consumed_train_samples += batch.running;
  // Only fp16 skips steps, and there the host waits for the verdict (absorb).
  if (!args_.fp16) state_.scheduler.step(batch.running);
  StepMetrics metrics{.iteration = state_.iteration,
                      .consumed_samples = state_.consumed_train_samples,
                      .global_batch_size = batch.running,
                      // As in Megatron-LM's log: what the next step will use.
                      .learning_rate = state_.scheduler.lr(),
                      .tokens = batch.running * args_.seq_length.value()};
  metrics.flops = training_flops(model_shape(model_), {batch.running, args_.seq_length.value()});
  return {std::move(numbers), std::move(metrics)};
}

void TrainingRun::check_finite(const StepNumbers& numbers, const StepMetrics& metrics) const {
  const bool checked = args_.check_for_nan_in_loss_and_grad && !args_.fp16;
  if (!checked || (!numbers.nonfinite && std::isfinite(numbers.loss))) return;
  throw Fault(
      fmt::format("loss {} and gradient norm {} at iteration {}: the weights were left as they were after "
                  "iteration {}. Lower --lr, lengthen the warm-up or look at the data from sample {} on; "
                  "--no-check-for-nan-in-loss-and-grad trains on regardless",
                  numbers.loss, numbers.grad_norm, metrics.iteration, metrics.iteration - 1,
                  metrics.consumed_samples - metrics.global_batch_size),
      ExitCode::numerics);
}

void TrainingRun::absorb(IssuedStep step) {
  const StepNumbers numbers = step.numbers.resolve();
  StepMetrics& metrics = step.metrics;
  check_finite(numbers, metrics);
  const bool skipped = args_.fp16 && numbers.nonfinite;
  if (args_.fp16 && !skipped) state_.scheduler.step(metrics.global_batch_size);
  if (args_.fp16) metrics.learning_rate = state_.scheduler.lr();
  if (!skipped) state_.optimizer_steps += 1;
  state_.scaler.update(skipped);
  metrics.loss_scale = state_.scaler.scale();
  stop_reason_ = std::max(stop_reason_, static_cast<StopReason>(numbers.stop_request));
  metrics.losses = {{"lm loss", numbers.loss}};
  metrics.skipped = skipped;
  if (!skipped) metrics.grad_norm = numbers.grad_norm;
  if (args_.log_num_zeros_in_grad) metrics.num_zeros = numbers.num_zeros;
  if (args_.log_params_norm) metrics.params_norm = numbers.parameter_norm;
  meter_->add(metrics);
  if (progress_) progress_->step(metrics.iteration, metrics.seconds);
  emit(metrics);
  if (observer_ && !seen_enough_) seen_enough_ = !observer_(metrics);
}

void TrainingRun::log_interval() {
  if (meter_->steps() == 0) return;
  emit(meter_->means());
  meter_->reset();
}

void TrainingRun::train() {
  open_logs();
  if (args_.skip_train || state_.iteration >= train_iters()) return;
  if (!data_->has(Split::train)) {
    throw data_error({.what = "there is no training data",
                      .where = "data-path",
                      .fix = "Give --data-path with a --split that has a train share, or --mock-data"});
  }
  const std::unique_ptr<BatchSource> source = data_->open(Split::train, state_.consumed_train_samples);
  std::optional<IssuedStep> pending;
  auto last = std::chrono::steady_clock::now();
  while (state_.iteration < train_iters() && stop_reason_ == StopReason::none) {
    IssuedStep step = issue_step(*source);
    if (pending) absorb(*std::exchange(pending, std::nullopt));
    const auto now = std::chrono::steady_clock::now();
    step.metrics.seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    pending = std::move(step);
    if (must_read_now()) absorb(*std::exchange(pending, std::nullopt));
    if (pending) continue;
    if (at_interval(args_.log_interval)) log_interval();
    if (at_interval(args_.eval_interval)) {
      evaluate(Split::valid, fmt::format("iteration {}", state_.iteration));
      const BatchSize batch = batches_.at(state_.consumed_train_samples);
      state_.consumed_valid_samples += args_.eval_iters * batch.running;
      last = std::chrono::steady_clock::now();
    }
    if (at_interval(args_.exit_interval)) stop_reason_ = std::max(stop_reason_, StopReason::interval);
    if (args_.save && at_interval(args_.save_interval)) save_between_steps();
  }
  if (pending) absorb(*std::move(pending));
  log_interval();
}

void TrainingRun::evaluate(Split split, const std::string& prefix) {
  if (!data_->has(split) || args_.eval_iters == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  const int64_t consumed = split == Split::valid ? state_.consumed_valid_samples : 0;
  const std::unique_ptr<BatchSource> source = data_->open(split, consumed);
  const BatchSize batch = batches_.at(state_.consumed_train_samples);
  const StepNumbers numbers =
      trainer_->evaluate([&](int64_t) { return source->next(); }, args_.eval_iters * batch.microbatches);
  emit(EvalMetrics{.iteration = state_.iteration,
                   .consumed_samples = state_.consumed_train_samples,
                   .split = split == Split::valid ? "validation" : "test",
                   .prefix = prefix,
                   .losses = {{"lm loss", numbers.loss}},
                   .seconds = seconds_since(begin)});
}

void TrainingRun::save_between_steps() {
  try {
    save();
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::checkpoint) throw;
    if (mesh_.rank() == 0) {
      warn(
          "{} The checkpoint of iteration {} was not saved; training goes on and tries again after {} "
          "iterations",
          fault.what(), state_.iteration, *args_.save_interval);
    }
  }
}

void TrainingRun::save() {
  const auto begin = std::chrono::steady_clock::now();
  const std::filesystem::path path = save_model(*trainer_, {.directory = *args_.save,
                                                            .iteration = state_.iteration,
                                                            .texts = {config_json(), state_.to_json()},
                                                            .optimizer = !args_.no_save_optim});
  saved_iteration_ = state_.iteration;
  emit(SaveMetrics{.iteration = state_.iteration,
                   .directory = *args_.save,
                   .seconds = seconds_since(begin),
                   .bytes = open_checkpoint(path).bytes});
}

void TrainingRun::finish() {
  static constexpr const char* reasons[] = {"finished", "exit-interval", "exit-duration", "signal"};
  emit(EndMetrics{.iteration = state_.iteration,
                  .reason = reasons[static_cast<size_t>(stop_reason_)],
                  .seconds = seconds_since(start_)});
  const std::filesystem::path directory = run_directory(args_);
  if (!hub_ || directory.empty()) return;
  hub_->flush();
  write_report(directory / "metrics.jsonl", directory / "report.html");
}

}  // namespace teratron
