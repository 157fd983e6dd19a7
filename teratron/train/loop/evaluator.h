// Evaluations of a training: some steps of a split, or the whole validation split after an epoch.
#pragma once

#include <optional>
#include <string>

#include "teratron/train/loop/stop_policy.h"
#include "teratron/train/loop/train_log.h"

namespace teratron {

/// Evaluates in parts of about a second. Between them the ranks agree whether a signal ends the evaluation:
/// then it has no result, and the training stops. Collective over the mesh.
class Evaluator {
 public:
  /// All must outlive it.
  Evaluator(Trainer& trainer, TrainLog& log, StopPolicy& stop) : trainer_(trainer), log_(log), stop_(stop) {}

  /// Evaluates --eval-iters steps of a split without changing the counters; `prefix` as in Megatron-LM's log.
  /// False: there is nothing to evaluate, or a signal ended it.
  bool evaluate(Split split, const std::string& prefix);
  /// Evaluates the whole validation split after an epoch of --num-train-epochs.
  void evaluate_epoch();
  /// The current iteration completes an epoch of --num-train-epochs.
  bool at_epoch_end() const;

 private:
  std::optional<StepResult> in_parts(Split split, bool whole);
  void log(EvalMetrics metrics, const StepResult& result);
  /// The epochs that are complete, or end with the training, after so many steps.
  int64_t epochs_after(int64_t iterations) const;

  Trainer& trainer_;
  TrainLog& log_;
  StopPolicy& stop_;
  int64_t evaluated_ = -1;  // the iteration of the last evaluation of the valid split
};

}  // namespace teratron
