// What becomes of a step whose loss or gradient is not finite: --check-for-nan-in-loss-and-grad,
// --max-nan-iterations.
#pragma once

#include <functional>

#include "teratron/settings/arguments.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

class NanPolicy {
 public:
  /// Both must outlive it.
  NanPolicy(const Arguments& args, TrainEngine& engine) : args_(args), engine_(engine) {}

  /// Whether the next step depends on the result of this one (loss scale, skipped steps).
  bool must_wait_for_result() const { return args_.fp16 || args_.max_nan_iterations > 0; }
  /// Whether the finished step changed nothing. After too many such steps in a row the step is diagnosed
  /// (nonfinite.h), `before_stop` is called, and a Fault (numerics) thrown. Collective over the mesh.
  bool was_skipped(const StepResult& result, const PendingStep& step,
                   const std::function<void()>& before_stop);

 private:
  Fault fault(const StepResult& result, const PendingStep& step);

  const Arguments& args_;
  TrainEngine& engine_;
  int64_t skipped_ = 0;  // in a row
};

}  // namespace teratron
