// When a training saves, and what a failed save means.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "teratron/telemetry/progress_log.h"
#include "teratron/train/loop/train_log.h"

namespace teratron {

/// A failed save (full disk) does not stop the training: the next one tries again. Collective over the mesh.
class SavePolicy {
 public:
  /// Both must outlive it.
  SavePolicy(Trainer& trainer, TrainLog& log) : trainer_(trainer), log_(log) {}

  /// Opens progress.txt (--log-progress). `start_time`: wall clock.
  void open_progress(double start_time);
  /// After each step, under --async-save.
  void advance();
  /// At --save-interval: starts a save, unless this iteration is saved.
  void save();
  /// A checkpoint of this iteration, complete, if --save is set; nothing if it is saved.
  void save_now();
  /// Waits for the pending save.
  void finish();
  /// At the end of the training: saves, unless this iteration is saved. Failures are thrown. Returns what was
  /// written, which log() reports where Megatron-LM does.
  std::optional<SaveMetrics> save_last();
  void log(const SaveMetrics& saved);

 private:
  bool is_due() const { return trainer_.args().save && !trainer_.saver().is_saved(); }
  std::optional<SaveMetrics> start();
  /// Calls `saving` and logs what it committed.
  void handle(const std::function<std::optional<SaveMetrics>()>& saving);

  Trainer& trainer_;
  TrainLog& log_;
  std::unique_ptr<ProgressLog> progress_log_;  // of the first rank
  ProgressLog::Saved last_;                    // the save that was started last
};

}  // namespace teratron
