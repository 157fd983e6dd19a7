#include "teratron/train/train_loop.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/device.h"
#include "teratron/settings/component_options.h"
#include "teratron/telemetry/report.h"
#include "teratron/train/guards/replica_check.h"
#include "teratron/train/run_info.h"

namespace teratron {

namespace {

std::filesystem::path run_directory(const Arguments& args) {
  return args.run_dir.value_or(args.save.value_or(""));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TimingOption timing_option(const Arguments& args) {
  if (args.timing_log_option == "all") return TimingOption::all;
  return args.timing_log_option == "max" ? TimingOption::max : TimingOption::minmax;
}

TensorBoardOptions tensorboard_options(const Arguments& args) {
  return {.log_interval = args.tensorboard_log_interval,
          .learning_rate = args.log_learning_rate_to_tensorboard,
          .loss_scale = args.log_loss_scale_to_tensorboard,
          .timers = args.log_timers_to_tensorboard,
          .validation_ppl = args.log_validation_ppl_to_tensorboard,
          .memory = args.log_memory_to_tensorboard,
          .world_size = args.log_world_size_to_tensorboard};
}

// A new run gets a new log; the log of the previous run stays next to it.
std::filesystem::path metrics_file(const std::filesystem::path& directory, bool is_new) {
  make_directories(directory, ExitCode::config);
  std::filesystem::path log = directory / "metrics.jsonl";
  if (is_new && std::filesystem::exists(log)) {
    std::filesystem::rename(log, directory / "metrics.previous.jsonl");
  }
  return log;
}

std::unique_ptr<StepProfiler> make_profiler(const Trainer& trainer) {
  const Arguments& args = trainer.args();
  const int64_t rank = trainer.mesh().rank();
  const std::vector<int64_t> ranks =
      args.profile_ranks.empty() ? std::vector<int64_t>{0} : args.profile_ranks;
  if (!args.profile || std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return nullptr;
  const std::filesystem::path directory = run_directory(args);
  make_directories(directory, ExitCode::config);
  return std::make_unique<StepProfiler>(
      StepProfilerOptions{.first = args.profile_step_start,
                          .last = args.profile_step_end,
                          .file = directory / fmt::format("trace-rank-{}.json", rank),
                          .device = trainer.device()});
}

// The training is saved: it does not fail because its log was removed.
void report_or_warn(const std::filesystem::path& directory) {
  try {
    write_report(directory / "metrics.jsonl", directory / "report.html");
  } catch (const std::exception& error) {
    warn("report.html is not written: {}", error.what());
  }
}

}  // namespace

TrainLoop::TrainLoop(const Arguments& args, const Mesh& mesh, const StopSignals& signals,
                     const JobModel& model)
    : start_(std::chrono::steady_clock::now()),
      // The earliest of all ranks: ranks that start late must not extend the job's time.
      start_time_(all_reduce_min(*mesh.world().communicator, wall_clock())),
      trainer_(args, mesh, model),
      signals_(signals) {
  report_timers(trainer_.timers(), 1);
  if (is_first_rank()) print_line(datetime_line("after dataloaders are built", wall_clock()));
}

bool TrainLoop::load() {
  {
    const auto timed = trainer_.timers().scope("load-checkpoint");
    trainer_.load();
  }
  if (args().load) report_timers(trainer_.timers(), 1);
  first_iteration_ = state().iteration;
  const bool finished =
      !args().skip_train && state().iteration > 0 && state().iteration >= trainer_.train_iters();
  const auto due = [finished](const std::optional<std::string>& folder) {
    std::error_code ignored;
    return folder && !(finished && std::filesystem::exists(*folder, ignored));
  };
  if (due(args().hf_out)) trainer_.check_hf_out();
  if (due(args().lora_out)) trainer_.check_lora_out();
  if (finished) export_model();
  return finished;
}

void TrainLoop::open_logs() {
  const RunInfo info = run_info(trainer_);
  meter_ = std::make_unique<IntervalMeter>(info);
  profiler_ = make_profiler(trainer_);
  if (args().log_progress && args().save && is_first_rank()) {
    progress_log_ = std::make_unique<ProgressLog>(
        *args().save, ProgressLog::Start{.world_size = trainer_.mesh().world_size(),
                                         .flops = state().floating_point_operations,
                                         .wall_time = start_time_});
  }
  if (!trainer_.is_last_rank()) return;
  if (args().log_throughput) {
    notice(
        "TFLOP/s are counted by the causal convention, half of the attention scores; metrics.jsonl also has "
        "the full one of Megatron-LM core 0.7");
  }
  metrics_logger_ = std::make_unique<MetricsLogger>();
  metrics_logger_->add_sync("console", console_writer({.short_format = args().log_format == "short",
                                                       .log_throughput = args().log_throughput,
                                                       .timing = timing_option(args())}));
  const std::filesystem::path directory = run_directory(args());
  if (!directory.empty()) {
    const std::filesystem::path log = metrics_file(directory, state().iteration == 0);
    metrics_logger_->add_async("metrics.jsonl", jsonl_writer(log));
    if (args().wandb_project) {
      notice("Weights & Biases: run tools/wandb_follow.py {} during the training, or after it", log.string());
    }
  }
  if (args().tensorboard_dir) {
    metrics_logger_->add_async("TensorBoard",
                               tensorboard_writer(*args().tensorboard_dir, tensorboard_options(args())));
  }
  emit(info);
}

void TrainLoop::show_progress() {
  if (!trainer_.is_last_rank()) return;
  const int64_t save_interval = args().save ? args().save_interval.value_or(0) : 0;
  progress_ = std::make_unique<Progress>(
      ProgressState{
          .iteration = state().iteration, .total = trainer_.train_iters(), .save_interval = save_interval},
      progress_output(process_environment));
}

void TrainLoop::emit(decltype(MetricsEvent::data) what) {
  if (!metrics_logger_) return;
  metrics_logger_->log({.wall_time = wall_clock(), .data = std::move(what)});
}

std::filesystem::path TrainLoop::autoresume_file() const {
  return args().autoresume_file.value_or(
      (std::filesystem::path(args().save.value()) / "autoresume").string());
}

int64_t TrainLoop::stop_request() const {
  const int signal = signals_.received();
  return static_cast<int64_t>(signal != 0 ? StopReason::signal : planned_stop()) + signal;
}

TrainLoop::StopReason TrainLoop::planned_stop() const {
  const bool looks_for_file = args().adlr_autoresume && is_first_rank() &&
                              (state().iteration + 1) % args().adlr_autoresume_interval == 0;
  std::error_code ignored;
  if (looks_for_file && std::filesystem::exists(autoresume_file(), ignored)) return StopReason::autoresume;
  const bool late = args().exit_duration_in_mins &&
                    wall_clock() - start_time_ > 60.0 * static_cast<double>(*args().exit_duration_in_mins);
  return late || observer_stopped_ ? StopReason::duration : StopReason::none;
}

bool TrainLoop::at_interval(const std::optional<int64_t>& interval) const {
  return interval && state().iteration % *interval == 0;
}

// The host runs one step ahead of the device, unless its next action depends on the step's result.
bool TrainLoop::must_finish_now() const {
  return trainer_.device().is_cpu() || trainer_.must_wait_for_result() ||
         state().iteration >= trainer_.train_iters() || at_interval(args().log_interval) ||
         at_interval(args().eval_interval) || at_interval(args().save_interval) ||
         at_interval(args().exit_interval) || at_interval(args().generate_interval) || at_epoch() ||
         at_epoch_end() || at_interval(args().check_weight_hash_across_dp_replicas_interval);
}

void TrainLoop::finish_step(PendingStep step) {
  const StepResult result = trainer_.finish_step(std::move(step));
  const int64_t request = result.stop_request, by_signal = static_cast<int64_t>(StopReason::signal);
  stop_reason_ = std::max(stop_reason_, static_cast<StopReason>(std::min(request, by_signal)));
  stop_signal_ = std::max(stop_signal_, request - by_signal);
  StepMetrics metrics = result.metrics;
  if (metrics_logger_ && at_interval(args().log_interval)) metrics.memory = device_memory(trainer_.device());
  meter_->add(metrics);
  if (progress_) progress_->step(metrics.iteration, metrics.seconds);
  emit(metrics);
  if (observer_ && !observer_stopped_) observer_stopped_ = !observer_(metrics);
  handle_save([this] { return trainer_.continue_save(); });
}

void TrainLoop::log_interval() {
  const int64_t steps = meter_->steps();
  if (steps == 0) return;
  emit(meter_->means());
  if (progress_) progress_->logged();
  meter_->reset();
  if (args().timing_log_level > 0) report_timers(trainer_.timers(), steps);
}

// After the first two iterations of a process, as Megatron-LM: by then everything is allocated.
void TrainLoop::report_memory() const {
  const int64_t steps = state().iteration - first_iteration_;
  if (steps > 2 || trainer_.mesh().data_parallel().rank != 0) return;
  const std::optional<MemoryUse> memory = device_memory(trainer_.device());
  if (memory) print_line(memory_line(trainer_.mesh().rank(), state().iteration, *memory));
}

void TrainLoop::report_timers(Timers& timers, int64_t iterations) {
  const TimerReadings mine = timers.milliseconds(iterations);
  timers.reset();
  const bool per_rank = timing_option(args()) == TimingOption::all;
  TimerMetrics metrics = reduce_timers(*trainer_.mesh().world().communicator, mine, per_rank);
  if (!trainer_.is_last_rank()) return;
  metrics.iteration = state().iteration;
  if (metrics_logger_) return emit(std::move(metrics));
  for (const std::string& line : timer_lines(metrics, timing_option(args()))) print_line(line);
}

void TrainLoop::train() {
  open_logs();
  show_progress();
  if (args().skip_train) {
    if (is_first_rank()) print("skipping training (--skip-train is on) ...");
    return;
  }
  if (state().iteration >= trainer_.train_iters()) return;
  if (args().generate_interval) sampler_ = make_sampler_(trainer_);
  const std::unique_ptr<BatchSource> source = trainer_.open(Split::train);
  if (is_first_rank()) {
    print("training ...");
    print_line(datetime_line("before the start of training step", wall_clock()));
  }
  const MicroBatches microbatches = trainer_.batches_from(*source);
  std::optional<PendingStep> pending;
  auto last = std::chrono::steady_clock::now();
  while (state().iteration < trainer_.train_iters() && stop_reason_ == StopReason::none) {
    if (trainer_.skips_next_step()) {
      if (pending) {
        finish_step(*std::exchange(pending, std::nullopt));  // it may ask to stop
        continue;
      }
      trainer_.skip_step(microbatches);
      run_intervals();
      last = std::chrono::steady_clock::now();
      continue;
    }
    if (profiler_) profiler_->before_step(state().iteration);
    PendingStep step = trainer_.launch_step(microbatches, stop_request());
    if (pending) finish_step(*std::exchange(pending, std::nullopt));
    const auto now = std::chrono::steady_clock::now();
    step.metrics.seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    pending = std::move(step);
    if (profiler_) profiler_->after_step(state().iteration);
    report_memory();
    if (!must_finish_now()) continue;
    finish_step(*std::exchange(pending, std::nullopt));
    run_intervals();
    // An evaluation does not count into the time of the next step.
    if (at_interval(args().eval_interval) || at_epoch_end()) last = std::chrono::steady_clock::now();
  }
  if (pending) finish_step(*std::move(pending));
  log_interval();
  if (is_first_rank() && stop_reason_ != StopReason::signal) {
    print_line(datetime_line("after training is done", wall_clock()));
  }
}

void TrainLoop::run_intervals() {
  if (at_interval(args().log_interval)) log_interval();
  if (at_interval(args().check_weight_hash_across_dp_replicas_interval)) {
    check_replicas(trainer_.engine().parameters(), trainer_.mesh());
  }
  if (at_interval(args().eval_interval)) {
    evaluate(Split::valid, fmt::format("iteration {}", state().iteration));
    trainer_.state().consumed_valid_samples += args().eval_iters * trainer_.eval_batch_size().running;
  }
  if (at_epoch_end()) evaluate_epoch();
  if (sampler_ && at_interval(args().generate_interval)) {
    for (SampleText& sample : sampler_()) emit(std::move(sample));
  }
  if (at_epoch()) epochs_.work();
  if (at_interval(args().exit_interval)) stop_reason_ = std::max(stop_reason_, StopReason::interval);
  if (!args().save || !at_interval(args().save_interval) || trainer_.is_saved()) return;
  handle_save([this] { return trainer_.finish_save(); });
  handle_save([this] { return save(); });
}

void TrainLoop::tell_stop() const {
  if (!args().save && !args().skip_train) {
    warn("stopped by a signal, and {}: there is no --save",
         args().hf_out ? "only the weights were kept, in --hf-out" : "nothing was saved");
  } else if (stop_signal_ > 0 && (args().skip_train || state().iteration >= trainer_.train_iters())) {
    print("stopped by signal {} before the evaluation was complete", stop_signal_);
  } else if (stop_signal_ > 0) {
    print("stopped by signal {} after saving iteration {}; start again to go on", stop_signal_,
          state().iteration);
  }
}

ExitCode TrainLoop::finish() {
  handle_save([this] { return trainer_.finish_save(); });
  // Saved before anything else can fail, but logged where Megatron-LM logs it.
  std::optional<SaveMetrics> saved;
  if (args().save && state().iteration > first_iteration_ && !trainer_.is_saved()) {
    saved = save();
    if (!saved) saved = trainer_.finish_save();
  }
  export_model();
  if (stop_reason_ == StopReason::none) evaluate(Split::valid, "the end of training for val data");
  if (saved) log_save(*saved);
  if (stop_reason_ == StopReason::none) evaluate(Split::test, "the end of training for test data");
  progress_.reset();
  const bool again = stop_reason_ == StopReason::signal || stop_reason_ == StopReason::autoresume;
  if (again && is_first_rank()) tell_stop();
  if (stop_reason_ == StopReason::autoresume && is_first_rank()) {
    notice("autoresume: {} requested the stop and is removed", autoresume_file().string());
    std::error_code error;
    std::filesystem::remove(autoresume_file(), error);
    if (error) warn("{} cannot be removed: {}", autoresume_file().string(), error.message());
  }
  static constexpr const char* reasons[] = {"finished", "exit-interval", "exit-duration", "autoresume",
                                            "signal"};
  emit(EndMetrics{.iteration = state().iteration,
                  .reason = reasons[static_cast<size_t>(stop_reason_)],
                  .seconds = seconds_since(start_)});
  const std::filesystem::path directory = run_directory(args());
  if (metrics_logger_ && !directory.empty()) {
    metrics_logger_->flush();
    report_or_warn(directory);
  }
  return again ? ExitCode::stopped : ExitCode::ok;
}

}  // namespace teratron
