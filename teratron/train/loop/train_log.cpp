#include "teratron/train/loop/train_log.h"

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/device/device.h"
#include "teratron/settings/component_options.h"
#include "teratron/telemetry/report.h"
#include "teratron/train/run_info.h"

namespace teratron {

namespace {

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

// The training is saved: it does not fail because its log was removed.
void report_or_warn(const std::filesystem::path& directory) {
  try {
    write_report(directory / "metrics.jsonl", directory / "report.html");
  } catch (const std::exception& error) {
    warn("report.html is not written: {}", error.what());
  }
}

}  // namespace

void TrainLog::open() {
  const RunInfo info = run_info(trainer_);
  meter_ = std::make_unique<IntervalMeter>(info);
  if (!trainer_.is_last_rank()) return;
  add_writers();
  emit(info);
  show_progress();
}

void TrainLog::add_writers() {
  if (args().log_throughput) {
    notice(
        "TFLOP/s are counted by the causal convention, half of the attention scores; metrics.jsonl also has "
        "the full one of Megatron-LM core 0.7");
  }
  logger_ = std::make_unique<MetricsLogger>();
  logger_->add_sync("console", console_writer({.short_format = args().log_format == "short",
                                               .log_throughput = args().log_throughput,
                                               .timing = timing_option(args())}));
  const std::filesystem::path directory = run_directory(args());
  if (!directory.empty()) {
    const std::filesystem::path log = metrics_file(directory, state().iteration == 0);
    logger_->add_async("metrics.jsonl", jsonl_writer(log, [directory] { report_or_warn(directory); }));
    if (args().wandb_project) {
      notice("Weights & Biases: run tools/wandb_follow.py {} during the training, or after it", log.string());
    }
  }
  if (args().tensorboard_dir) {
    logger_->add_async("TensorBoard",
                       tensorboard_writer(*args().tensorboard_dir, tensorboard_options(args())));
  }
}

void TrainLog::show_progress() {
  const int64_t save_interval = args().save ? args().save_interval.value_or(0) : 0;
  progress_ = std::make_unique<Progress>(
      ProgressState{
          .iteration = state().iteration, .total = trainer_.train_iters(), .save_interval = save_interval},
      progress_output(process_environment));
}

void TrainLog::emit(decltype(MetricsEvent::data) what) {
  if (logger_) logger_->log({.wall_time = wall_clock(), .data = std::move(what)});
}

void TrainLog::step(StepMetrics& metrics) {
  if (logger_ && at_interval()) metrics.memory = device_memory(trainer_.device());
  meter_->add(metrics);
  if (progress_) progress_->step(metrics.iteration, metrics.seconds);
  emit(metrics);
}

void TrainLog::interval() {
  const int64_t steps = meter_->steps();
  if (steps == 0) return;
  emit(meter_->means());
  if (progress_) progress_->logged();
  meter_->reset();
  if (args().timing_log_level > 0) timers(trainer_.timers(), steps);
}

void TrainLog::memory() const {
  if (trainer_.new_steps() > 2 || trainer_.mesh().data_parallel().rank != 0) return;
  const std::optional<MemoryUse> memory = device_memory(trainer_.device());
  if (memory) print_line(memory_line(trainer_.mesh().rank(), state().iteration, *memory));
}

void TrainLog::timers(Timers& timers, int64_t iterations) {
  const TimerReadings mine = timers.milliseconds(iterations);
  timers.reset();
  const bool per_rank = timing_option(args()) == TimingOption::all;
  TimerMetrics metrics = reduce_timers(*trainer_.mesh().world().communicator, mine, per_rank);
  if (!trainer_.is_last_rank()) return;
  metrics.iteration = state().iteration;
  if (logger_) return emit(std::move(metrics));
  for (const std::string& line : timer_lines(metrics, timing_option(args()))) print_line(line);
}

void TrainLog::evaluating(int64_t done, int64_t total) {
  if (progress_) progress_->evaluating(done, total);
}

void TrainLog::evaluated() {
  if (progress_) progress_->evaluated();
}

void TrainLog::end(const EndMetrics& metrics) {
  emit(metrics);
  const std::filesystem::path directory = run_directory(args());
  if (!logger_ || directory.empty()) return;
  logger_->flush();
  report_or_warn(directory);
}

}  // namespace teratron
