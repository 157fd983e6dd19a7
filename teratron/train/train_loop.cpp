#include "teratron/train/train_loop.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/report.h"
#include "teratron/train/device/device.h"
#include "teratron/train/guards/replicas.h"
#include "teratron/train/run_info.h"

namespace teratron {

namespace {

std::filesystem::path run_directory(const Arguments& args) {
  return args.run_dir.value_or(args.save.value_or(""));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Ranks that start late must not make a job outlive its time: the earliest start counts.
double earliest(double mine, const Mesh& mesh) {
  double first = mine;
  for (const std::string& time : mesh.world().communicator->all_gather_bytes(fmt::format("{}", mine))) {
    first = std::min(first, std::stod(time));
  }
  return first;
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

// A new run has a log of its own; that of the run before it is kept beside it.
std::filesystem::path metrics_file(const std::filesystem::path& directory, bool is_new) {
  make_directories(directory, ExitCode::config);
  std::filesystem::path log = directory / "metrics.jsonl";
  if (is_new && std::filesystem::exists(log)) {
    std::filesystem::rename(log, directory / "metrics.previous.jsonl");
  }
  return log;
}

std::unique_ptr<Trace> make_trace(const Training& training) {
  const Arguments& args = training.args();
  const int64_t rank = training.mesh().rank();
  const std::vector<int64_t> ranks =
      args.profile_ranks.empty() ? std::vector<int64_t>{0} : args.profile_ranks;
  if (!args.profile || std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return nullptr;
  const std::filesystem::path directory = run_directory(args);
  make_directories(directory, ExitCode::config);
  return std::make_unique<Trace>(TraceOptions{.first = args.profile_step_start,
                                              .last = args.profile_step_end,
                                              .file = directory / fmt::format("trace-rank-{}.json", rank),
                                              .device = training.device()});
}

GridPosition position_of(const Mesh& mesh) {
  return {.tp_rank = mesh.group(Axis::tp).rank,
          .tp_size = mesh.group(Axis::tp).size,
          .pp_rank = mesh.group(Axis::pp).rank,
          .pp_size = mesh.group(Axis::pp).size};
}

}  // namespace

TrainingRun::TrainingRun(const Arguments& args, const Mesh& mesh, const StopSignals& signals,
                         const Registry& registry)
    : start_(std::chrono::steady_clock::now()),
      start_time_(earliest(wall_clock(), mesh)),
      training_(args, mesh, registry),
      signals_(signals) {
  report_timers(training_.timers(), 1);
  if (speaks_first()) print_line(datetime_line("after dataloaders are built", wall_clock()));
}

bool TrainingRun::load() {
  {
    const auto timed = training_.timers().scope("load-checkpoint");
    training_.load();
  }
  if (args().load) report_timers(training_.timers(), 1);
  first_iteration_ = state().iteration;
  return !args().skip_train && state().iteration > 0 && state().iteration >= training_.train_iters();
}

void TrainingRun::open_logs() {
  const RunFacts facts = run_facts({.args = args(),
                                    .model = training_.model(),
                                    .device = training_.device(),
                                    .parameters = training_.trainer().parameters().numel(),
                                    .train_iters = training_.train_iters(),
                                    .start_iteration = state().iteration,
                                    .world_size = training_.mesh().world_size()});
  meter_ = std::make_unique<IntervalMeter>(facts);
  trace_ = make_trace(training_);
  if (args().log_progress && args().save && speaks_first()) {
    progress_log_ = std::make_unique<ProgressLog>(
        *args().save, ProgressLog::Start{.world_size = training_.mesh().world_size(),
                                         .flops = state().floating_point_operations,
                                         .wall_time = start_time_});
  }
  if (!training_.is_main_rank()) return;
  if (args().log_throughput) {
    notice(
        "TFLOP/s are counted by the causal convention, half of the attention scores; metrics.jsonl also has "
        "the full "
        "one of Megatron-LM core 0.7");
  }
  hub_ = std::make_unique<MetricsHub>();
  hub_->add_now("console", console_sink({.short_format = args().log_format == "short",
                                         .log_throughput = args().log_throughput,
                                         .timing = timing_option(args())}));
  const std::filesystem::path directory = run_directory(args());
  if (!directory.empty()) {
    const std::filesystem::path log = metrics_file(directory, state().iteration == 0);
    hub_->add_background("metrics.jsonl", jsonl_sink(log));
    if (args().wandb_project) {
      notice("Weights & Biases: run tools/wandb_follow.py {} beside the training, or after it", log.string());
    }
  }
  if (args().tensorboard_dir) {
    hub_->add_background("TensorBoard",
                         tensorboard_sink(*args().tensorboard_dir, tensorboard_options(args())));
  }
  progress_ = std::make_unique<ProgressBar>(ProgressState{.iteration = state().iteration,
                                                          .start_iteration = state().iteration,
                                                          .total = training_.train_iters(),
                                                          .save_interval = args().save_interval.value_or(0)});
  emit(facts);
}

void TrainingRun::emit(decltype(MetricsEvent::what) what) {
  if (!hub_) return;
  if (progress_) progress_->clear();
  hub_->emit({.wall_time = wall_clock(), .what = std::move(what)});
}

std::filesystem::path TrainingRun::autoresume_file() const {
  return args().autoresume_file.value_or(
      (std::filesystem::path(args().save.value()) / "autoresume").string());
}

// Asked before a step, for its end.
TrainingRun::StopReason TrainingRun::wish() const {
  if (signals_.received() != 0) return StopReason::signal;
  const bool looks = args().adlr_autoresume && speaks_first() &&
                     (state().iteration + 1) % args().adlr_autoresume_interval == 0;
  std::error_code ignored;
  if (looks && std::filesystem::exists(autoresume_file(), ignored)) return StopReason::autoresume;
  const bool late = args().exit_duration_in_mins &&
                    wall_clock() - start_time_ > 60.0 * static_cast<double>(*args().exit_duration_in_mins);
  return late || seen_enough_ ? StopReason::duration : StopReason::none;
}

bool TrainingRun::at_interval(const std::optional<int64_t>& interval) const {
  return interval && state().iteration % *interval == 0;
}

// The host runs one step ahead of the device, unless what it does next depends on the step's numbers.
bool TrainingRun::must_read_now() const {
  return training_.device().is_cpu() || training_.must_read_numbers() ||
         state().iteration >= training_.train_iters() || at_interval(args().log_interval) ||
         at_interval(args().eval_interval) || at_interval(args().save_interval) ||
         at_interval(args().exit_interval) ||
         at_interval(args().check_weight_hash_across_dp_replicas_interval);
}

void TrainingRun::absorb(IssuedStep step) {
  FinishedStep done = training_.absorb(std::move(step));
  stop_reason_ = std::max(stop_reason_, static_cast<StopReason>(done.numbers.stop_request));
  if (hub_ && at_interval(args().log_interval)) done.metrics.memory = device_memory(training_.device());
  meter_->add(done.metrics);
  if (progress_) progress_->step(done.metrics.iteration, done.metrics.seconds);
  emit(done.metrics);
  if (observer_ && !seen_enough_) seen_enough_ = !observer_(done.metrics);
  settle([this] { return training_.continue_save(); });
}

void TrainingRun::log_interval() {
  const int64_t steps = meter_->steps();
  if (steps == 0) return;
  emit(meter_->means());
  meter_->reset();
  if (args().timing_log_level > 0) report_timers(training_.timers(), steps);
}

// After the first two iterations of a process, as Megatron-LM: then everything has been allocated.
void TrainingRun::report_memory() const {
  const int64_t steps = state().iteration - first_iteration_;
  if (steps > 2 || training_.mesh().group(Axis::dp).rank != 0) return;
  const std::optional<MemoryUse> memory = device_memory(training_.device());
  if (memory) print_line(memory_line(training_.mesh().rank(), state().iteration, *memory));
}

void TrainingRun::report_timers(Timers& timers, int64_t iterations) {
  const nlohmann::json mine = timers.milliseconds(iterations);
  timers.reset();
  std::vector<TimerReadings> readings;
  for (const std::string& text : training_.mesh().world().communicator->all_gather_bytes(mine.dump())) {
    readings.push_back(nlohmann::json::parse(text).get<TimerReadings>());
  }
  if (!training_.is_main_rank()) return;
  TimerMetrics metrics = reduce_timers(readings);
  metrics.iteration = state().iteration;
  if (hub_) return emit(std::move(metrics));
  for (const std::string& line : timer_lines(metrics, timing_option(args()))) print_line(line);
}

void TrainingRun::train() {
  open_logs();
  if (args().skip_train) {
    if (speaks_first()) print("skipping training (--skip-train is on) ...");
    return;
  }
  if (state().iteration >= training_.train_iters()) return;
  if (!training_.has(Split::train)) {
    throw data_error({.what = "there is no training data",
                      .where = "--data-path",
                      .fix = "Give --data-path with a --split that has a train share, or --mock-data"});
  }
  if (speaks_first()) {
    print("training ...");
    print_line(datetime_line("before the start of training step", wall_clock()));
  }
  const std::unique_ptr<BatchSource> source = training_.open(Split::train);
  const MicroBatches microbatches = training_.from(*source);
  std::optional<IssuedStep> pending;
  auto last = std::chrono::steady_clock::now();
  while (state().iteration < training_.train_iters() && stop_reason_ == StopReason::none) {
    if (training_.skips_next()) {
      training_.skip(microbatches);
      continue;
    }
    if (trace_) trace_->before_step(state().iteration);
    IssuedStep step = training_.issue(microbatches, static_cast<int64_t>(wish()));
    if (pending) absorb(*std::exchange(pending, std::nullopt));
    const auto now = std::chrono::steady_clock::now();
    step.metrics.seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    pending = std::move(step);
    if (trace_) trace_->after_step(state().iteration);
    report_memory();
    if (!must_read_now()) continue;
    absorb(*std::exchange(pending, std::nullopt));
    between_steps();
    // What was done between the steps is none of theirs.
    if (at_interval(args().eval_interval)) last = std::chrono::steady_clock::now();
  }
  if (pending) absorb(*std::move(pending));
  log_interval();
  if (speaks_first()) print_line(datetime_line("after training is done", wall_clock()));
}

void TrainingRun::between_steps() {
  if (at_interval(args().log_interval)) log_interval();
  if (at_interval(args().check_weight_hash_across_dp_replicas_interval)) {
    check_replicas(training_.trainer().parameters(), training_.mesh());
  }
  if (at_interval(args().eval_interval)) {
    evaluate(Split::valid, fmt::format("iteration {}", state().iteration));
    training_.state().consumed_valid_samples += args().eval_iters * training_.global_batch_size();
  }
  if (at_interval(args().exit_interval)) stop_reason_ = std::max(stop_reason_, StopReason::interval);
  if (!args().save || !at_interval(args().save_interval)) return;
  settle([this] { return training_.finish_save(); });
  settle([this] { return save(); });
}

void TrainingRun::evaluate(Split split, const std::string& prefix) {
  if (!training_.has(split) || args().eval_iters == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::unique_ptr<BatchSource> source = training_.open(split);
  const StepNumbers numbers = training_.eval_step(*source, args().eval_iters);
  emit(EvalMetrics{.iteration = state().iteration,
                   .consumed_samples = state().consumed_train_samples,
                   .split = split == Split::valid ? "validation" : "test",
                   .prefix = prefix,
                   .losses = training_.named_losses(numbers),
                   .seconds = seconds_since(begin)});
}

std::optional<SaveMetrics> TrainingRun::save() {
  if (speaks_first()) print("saving checkpoint at iteration {:7d} to {}", state().iteration, *args().save);
  saving_ = {.iteration = state().iteration,
             .flops = state().floating_point_operations,
             .tokens = state().consumed_train_samples * args().seq_length.value()};
  Timers timers(0);
  std::optional<SaveMetrics> saved;
  {
    const auto timed = timers.scope("save-checkpoint");
    saved = training_.save();
  }
  if (args().timing_log_level > 0) report_timers(timers, 1);
  return saved;
}

void TrainingRun::announce(const SaveMetrics& saved) {
  saving_.wall_time = wall_clock();
  if (progress_log_) progress_log_->saved(saving_);
  if (progress_) progress_->clear();
  if (speaks_first()) {
    print_line(save_line(saved.iteration, saved.directory, position_of(training_.mesh())));
  }
  emit(saved);
}

void TrainingRun::settle(const std::function<std::optional<SaveMetrics>()>& saving) {
  try {
    if (const auto saved = saving()) announce(*saved);
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::checkpoint) throw;
    if (speaks_first()) warn("{} That checkpoint was not saved; the next save tries again", fault.what());
  }
}

ExitCode TrainingRun::finish() {
  settle([this] { return training_.finish_save(); });
  // What was trained is safe before anything else can fail; it is told where Megatron-LM's log has it.
  std::optional<SaveMetrics> saved;
  if (args().save && state().iteration > first_iteration_ && !training_.is_saved()) {
    saved = save();
    if (!saved) saved = training_.finish_save();
  }
  const bool again = stop_reason_ == StopReason::signal || stop_reason_ == StopReason::autoresume;
  if (!args().save && again && speaks_first()) {
    warn("stopped by a signal, and nothing was saved: there is no --save");
  }
  if (stop_reason_ == StopReason::none) evaluate(Split::valid, "the end of training for val data");
  if (saved) announce(*saved);
  if (stop_reason_ == StopReason::none) evaluate(Split::test, "the end of training for test data");
  if (stop_reason_ == StopReason::autoresume && speaks_first()) {
    notice("autoresume: {} asked for the stop and is removed", autoresume_file().string());
    std::filesystem::remove(autoresume_file());
  }
  static constexpr const char* reasons[] = {"finished", "exit-interval", "exit-duration", "autoresume",
                                            "signal"};
  emit(EndMetrics{.iteration = state().iteration,
                  .reason = reasons[static_cast<size_t>(stop_reason_)],
                  .seconds = seconds_since(start_)});
  const std::filesystem::path directory = run_directory(args());
  if (hub_ && !directory.empty()) {
    hub_->flush();
    write_report(directory / "metrics.jsonl", directory / "report.html");
  }
  return again ? ExitCode::stopped : ExitCode::ok;
}

}  // namespace teratron
