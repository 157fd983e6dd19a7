// What a training reports: log lines, metrics.jsonl, TensorBoard, timers, the progress of the terminal.
#pragma once

#include <memory>

#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/progress.h"
#include "teratron/train/trainer.h"

namespace teratron {

class TrainLog {
 public:
  /// `trainer` must outlive it.
  explicit TrainLog(Trainer& trainer) : trainer_(trainer) {}

  /// Before the first step: opens the files and starts the progress. Until then timers are printed, and
  /// events are dropped.
  void open();
  void emit(decltype(MetricsEvent::data) what);
  /// After each step, as soon as its result is known. Adds the memory to the metrics of a log line.
  void step(StepMetrics& metrics);
  /// The means since the last call, and the timers. Collective.
  void interval();
  /// After a step was launched: the memory after the first two of this process, as Megatron-LM. By then
  /// everything is allocated.
  void memory() const;
  /// Reports and resets timers of all ranks, divided by `iterations`. Collective.
  void timers(Timers& timers, int64_t iterations);
  /// Parts of an evaluation are done; all are.
  void evaluating(int64_t done, int64_t total);
  void evaluated();
  void end_progress() { progress_.reset(); }
  /// The last event, and the report.
  void end(const EndMetrics& metrics);

 private:
  const Arguments& args() const { return trainer_.args(); }
  const TrainState& state() const { return trainer_.state(); }
  bool at_interval() const { return state().iteration % args().log_interval == 0; }
  void add_writers();
  void show_progress();

  Trainer& trainer_;
  std::unique_ptr<MetricsLogger> logger_;  // of the last rank
  std::unique_ptr<IntervalMeter> meter_;
  std::unique_ptr<Progress> progress_;  // of the last rank
};

}  // namespace teratron
