// One rank's whole run: model, data, counters and everything that is told about them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "teratron/train/model_checkpoint.h"
#include "teratron/train/progress.h"
#include "teratron/train/run_data.h"
#include "teratron/train/run_lock.h"
#include "teratron/train/run_state.h"
#include "teratron/train/signals.h"
#include "teratron/train/sinks.h"

namespace teratron {

using StepObserver = std::function<bool(const StepMetrics&)>;

class TrainingRun {
 public:
  /// `signals` are the process's: rank threads share them.
  TrainingRun(const Arguments& args, const Mesh& mesh, const StopSignals& signals);

  /// Resumes from --load. True when the training was already finished.
  bool load();
  /// Trains to the planned end, an exit condition or a signal.
  void train();
  /// `observer` sees every step once its numbers are known; false ends the training in order, as an exit
  /// condition does (on all ranks, if on one).
  void on_step(StepObserver observer) { observer_ = std::move(observer); }
  /// Evaluates --eval-iters steps of a split; `prefix` as Megatron logs it. Counters are left as they are.
  void evaluate(Split split, const std::string& prefix);
  void save();
  void finish();
  /// A signal ended the training.
  bool stopped_by_signal() const { return stop_reason_ == StopReason::signal; }
  /// An exit condition or a signal ended the training before its planned end.
  bool stopped_early() const { return stop_reason_ != StopReason::none; }
  const Arguments& args() const { return args_; }
  const RunState& state() const { return state_; }
  bool has(Split split) const { return data_->has(split); }
  Trainer& trainer() { return *trainer_; }
  bool saved_last_iteration() const { return saved_iteration_ == state_.iteration; }

 private:
  /// Ordered by urgency: ranks agree on the greatest.
  enum class StopReason : uint8_t { none, interval, duration, signal };
  /// A step that was issued but whose numbers the host has not read.
  struct IssuedStep {
    StepInFlight numbers;
    StepMetrics metrics;
  };

  /// --fresh: no later start may pick up what an earlier run has left in the directory.
  void set_old_run_aside();
  void open_logs();
  bool is_logging_rank() const { return mesh_.rank() == mesh_.world_size() - 1; }
  int64_t train_iters() const;
  std::string config_json() const;
  void emit(decltype(MetricsEvent::what) what);
  StopReason wish() const;
  IssuedStep issue_step(BatchSource& source);
  /// Reads a step's numbers: loss scale, NaN policy, stop agreement, metrics.
  void absorb(IssuedStep step);
  void check_finite(const StepNumbers& numbers, const StepMetrics& metrics) const;
  void log_interval();
  /// A full disk does not end the training: it goes on, and the next interval tries again.
  void save_between_steps();
  bool must_read_now() const;
  bool at_interval(const std::optional<int64_t>& interval) const;

  Arguments args_;
  Mesh mesh_;
  at::Device device_;
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Tokenizer> tokenizer_;
  GPTConfig model_;
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunData> data_;
  RunState state_;
  BatchSchedule batches_;
  const StopSignals& signals_;
  std::unique_ptr<MetricsHub> hub_;
  std::unique_ptr<IntervalMeter> meter_;
  std::unique_ptr<ProgressBar> progress_;
  StopReason stop_reason_ = StopReason::none;
  StepObserver observer_;
  bool seen_enough_ = false;  // the observer's wish to stop
  int64_t saved_iteration_ = -1;
};

}  // namespace teratron
