// One optimizer step: what it is computed with, its scalars on the device, and its result on the host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "teratron/device/stream_marker.h"
#include "teratron/models/model.h"
#include "teratron/optim/optimizer.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

/// What a step is computed with, in addition to its micro-batches.
struct StepInputs {
  int64_t microbatches = 1;
  Optimizer::Hyperparameters hyper = {};
  int64_t stop_request = 0;  // this rank's; StepResult has the maximum over all ranks
  int64_t progress = 0;      // of this rank's background work; StepResult has the minimum over all ranks
  std::function<void()> before_update = nullptr;  // called when the optimizer is about to be launched
};

/// Result of a step or an evaluation. The same on every rank.
struct StepResult {
  double loss = 0.0;  // sum of the losses
  std::vector<double> losses =
      {};              // means over what each counts in the global batch; names: ModelPlan::losses
  int64_t tokens = 0;  // that the first loss counted
  double grad_norm = 0.0;
  bool nonfinite = false;  // Inf or NaN in the loss or the gradient
  int64_t num_zeros = 0;
  double parameter_norm = 0.0;
  int64_t stop_request = 0;
  int64_t progress = 0;
  int64_t graph_vote = 0;  // maximum over the ranks (train/graphs/graph_choice.h)
  double seconds = 0.0;  // between the ends of the previous step and this one on the device; 0 for the first
  std::vector<double> custom_metrics = {};  // means of TrainStep::metric_names()
  std::vector<double> layer_sums = {};      // ModelPlan::layer_sums
  StepMetrics metrics = {};                 // what is logged; filled in by Trainer
};

/// The scalars of a step in one f64 device tensor: accumulated and reduced in place, copied to the host
/// together.
class DeviceScalars {
 public:
  enum Slot : int64_t {
    grad_norm,
    found_inf,
    num_zeros,
    parameter_norm,
    stop_request,
    negative_progress,
    graph_vote,
    loss,    // sum and count of each loss, metrics of TrainStep::metric_names(), ModelPlan::layer_sums
    tokens,  // count of the first
  };
  struct Sizes {
    int64_t losses = 1;
    int64_t custom_metrics = 0;
    int64_t layer_sums = 0;
  };

  DeviceScalars(at::Device device, const Sizes& sizes);

  /// [1], a view.
  at::Tensor operator[](int64_t slot) const { return values_.narrow(0, slot, 1); }
  /// Losses, counts, custom metrics and layer sums: summed over ranks.
  at::Tensor sums() const { return values_.narrow(0, loss, values_.numel() - loss); }
  /// Stop request, negative progress and vote: the maximum over ranks counts.
  at::Tensor maxima() const { return values_.narrow(0, stop_request, loss - stop_request); }
  const at::Tensor& values() const { return values_; }
  /// [1]: Inf or NaN if any loss is.
  at::Tensor total_loss() const;
  const Sizes& sizes() const { return sizes_; }
  int64_t first_metric() const { return loss + 2 * sizes_.losses; }
  /// A view.
  at::Tensor layer_sums() const {
    return values_.narrow(0, first_metric() + sizes_.custom_metrics, sizes_.layer_sums);
  }

 private:
  Sizes sizes_;
  at::Tensor values_;
};

/// Forward and backward of a step: what it has beside the gradients, which are in the buffers.
struct StepGradients {
  DeviceScalars scalars;
  std::vector<MicroBatch> batches = {};  // this rank's, under EngineOptions::save_batches
  StreamMarker end = {};                 // of both on the device, where CUDA graphs may be chosen
};

/// A launched step whose scalars are on their way to the host.
class PendingStep {
 public:
  struct End;  // time at which a step's work was done

  /// `previous`: the end of the previous step, or null.
  explicit PendingStep(const DeviceScalars& scalars, std::shared_ptr<const End> previous = nullptr);
  /// Blocks until the step is done. Moves `metrics` into the result.
  StepResult wait();
  const std::shared_ptr<const End>& end() const { return end_; }

  StepInputs inputs = {};
  std::vector<MicroBatch> batches = {};  // this rank's, under EngineOptions::save_batches
  StepMetrics metrics = {};              // what is known at launch; filled in by Trainer

 private:
  DeviceScalars::Sizes sizes_;
  at::Tensor values_;
  std::shared_ptr<const End> previous_;
  std::shared_ptr<const End> end_;
};

}  // namespace teratron
