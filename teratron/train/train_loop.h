// The program's training loop over one rank's Training: evaluation, saves, exits, and everything that is told.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "teratron/telemetry/progress.h"
#include "teratron/telemetry/progress_log.h"
#include "teratron/telemetry/sinks.h"
#include "teratron/telemetry/trace.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/trainer.h"

namespace teratron {

using StepObserver = std::function<bool(const StepMetrics&)>;

class TrainingRun {
 public:
  /// `signals` are the process's: rank threads share them.
  TrainingRun(const Arguments& args, const Mesh& mesh, const StopSignals& signals,
              const Registry& registry = {});

  /// Resumes from --load. True when the training was already finished.
  bool load();
  /// Trains to the planned end, an exit condition or a signal.
  void train();
  /// `observer` sees every step once its numbers are known; false ends the training in order, as an exit
  /// condition does (on all ranks, if on one).
  void on_step(StepObserver observer) { observer_ = std::move(observer); }
  /// After train(): final save, evaluation of both other splits, report. ExitCode::stopped when a signal or
  /// autoresume ended the training.
  ExitCode finish();
  const Training& training() const { return training_; }
  const RunState& state() const { return training_.state(); }
  Trainer& trainer() { return training_.trainer(); }

 private:
  /// Ordered by urgency: ranks agree on the greatest.
  enum class StopReason : uint8_t { none, interval, duration, autoresume, signal };

  const Arguments& args() const { return training_.args(); }
  bool speaks_first() const { return training_.mesh().rank() == 0; }
  void open_logs();
  void emit(decltype(MetricsEvent::what) what);
  StopReason wish() const;
  std::filesystem::path autoresume_file() const;
  /// Reads a step's numbers: stop agreement, metrics.
  void absorb(IssuedStep step);
  /// What is due after the step whose numbers were just read.
  void between_steps();
  void log_interval();
  void report_memory() const;
  /// Timers of all ranks go to the log; `timers` start from zero. Collective.
  void report_timers(Timers& timers, int64_t iterations);
  /// Evaluates --eval-iters steps of a split; `prefix` as Megatron logs it. Counters are left as they are.
  void evaluate(Split split, const std::string& prefix);
  std::optional<SaveMetrics> save();
  void announce(const SaveMetrics& saved);
  /// Announces what `saving` has committed. A full disk does not end the training: it goes on, and the next interval
  /// tries again.
  void settle(const std::function<std::optional<SaveMetrics>()>& saving);
  bool must_read_now() const;
  bool at_interval(const std::optional<int64_t>& interval) const;

  std::chrono::steady_clock::time_point start_;
  double start_time_;  // wall clock, of the rank that started first
  Training training_;
  const StopSignals& signals_;
  std::unique_ptr<MetricsHub> hub_;
  std::unique_ptr<IntervalMeter> meter_;
  std::unique_ptr<ProgressBar> progress_;
  std::unique_ptr<ProgressLog> progress_log_;
  std::unique_ptr<Trace> trace_;
  StopReason stop_reason_ = StopReason::none;
  StepObserver observer_;
  ProgressLog::Saved saving_;    // the save that was last begun
  bool seen_enough_ = false;     // the observer's wish to stop
  int64_t first_iteration_ = 0;  // done before this process
};

}  // namespace teratron
