// The program's training loop over one rank's Trainer: intervals, evaluation, saving, stopping and logging.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/progress.h"
#include "teratron/telemetry/progress_log.h"
#include "teratron/telemetry/step_profiler.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/trainer.h"

namespace teratron {

using StepObserver = std::function<bool(const StepMetrics&)>;

class TrainLoop {
 public:
  /// `signals` belong to the process: rank threads share them.
  TrainLoop(const Arguments& args, const Mesh& mesh, const StopSignals& signals, const JobModel& model);

  /// Resumes from --load. True if the training was already finished; then a missing --hf-out is written.
  bool load();
  /// Trains to the planned end, an exit condition or a signal.
  void train();
  /// `observer` is called with every finished step; if it returns false on any rank, all ranks stop as they
  /// do at an exit condition.
  void on_step(StepObserver observer) { observer_ = std::move(observer); }
  /// After train(): final save, evaluation of the valid and test splits, report. ExitCode::stopped if a
  /// signal or autoresume stopped the training.
  ExitCode finish();

  const Trainer& trainer() const { return trainer_; }
  const TrainState& state() const { return trainer_.state(); }

 private:
  /// Ordered by urgency: ranks agree on the maximum.
  enum class StopReason : uint8_t { none, interval, duration, autoresume, signal };

  const Arguments& args() const { return trainer_.args(); }
  bool is_first_rank() const { return trainer_.is_first_rank(); }
  void open_logs();
  void show_progress();
  void emit(decltype(MetricsEvent::data) what);
  /// This rank's, before a step, for its end: a StopReason, plus the number of the signal.
  int64_t stop_request() const;
  StopReason planned_stop() const;
  std::filesystem::path autoresume_file() const;
  /// Reads a step's result: stop agreement, metrics.
  void finish_step(PendingStep step);
  /// Whatever is due after the step that was just finished.
  void run_intervals();
  void log_interval();
  void report_memory() const;
  /// Logs and resets the timers of all ranks. Collective.
  void report_timers(Timers& timers, int64_t iterations);
  /// Evaluates --eval-iters steps of a split without changing the counters; `prefix` as in Megatron-LM's log.
  void evaluate(Split split, const std::string& prefix);
  std::optional<SaveMetrics> save();
  void log_save(const SaveMetrics& saved);
  /// Calls `saving` and logs what it committed. A failed save (full disk) does not stop the training: the
  /// next interval tries again.
  void handle_save(const std::function<std::optional<SaveMetrics>()>& saving);
  /// --hf-out, if the training is finished, or if nothing else keeps its weights.
  void export_model();
  bool must_finish_now() const;
  bool at_interval(const std::optional<int64_t>& interval) const;

  std::chrono::steady_clock::time_point start_;
  double start_time_;  // wall clock, of the rank that started first
  Trainer trainer_;
  const StopSignals& signals_;
  std::unique_ptr<MetricsLogger> metrics_logger_;
  std::unique_ptr<IntervalMeter> meter_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<ProgressLog> progress_log_;
  std::unique_ptr<StepProfiler> profiler_;
  StopReason stop_reason_ = StopReason::none;
  int64_t stop_signal_ = 0;  // its number; 0: none
  StepObserver observer_;
  ProgressLog::Saved saving_;      // the last save that was started
  bool observer_stopped_ = false;  // it returned false
  int64_t first_iteration_ = 0;    // done before this process
  int64_t evaluated_ = -1;         // the iteration of the last evaluation of the valid split
};

}  // namespace teratron
