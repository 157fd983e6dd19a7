// One rank's model with its gradients and optimizer: what a training loop drives.
//
//   Trainer trainer(options, mesh);
//   StepInFlight step = trainer.train_step(microbatches, {.lr = 3e-4});
//   StepNumbers numbers = step.resolve();          // the first time the host waits
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "teratron/model/gpt.h"
#include "teratron/optim/flat_buffer.h"
#include "teratron/optim/optimizer.h"

namespace teratron {

struct TrainerOptions {
  GPTConfig model;
  StageSpec stage;
  OptimizerOptions optimizer;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  uint64_t seed = 1234;
  bool sequence_parallel = false;
  bool sharded_optimizer = false;
  int64_t bucket_size = 40'000'000;  // elements of a gradient bucket
  bool report_parameter_norm = false;
};

/// What a step did, on the host.
struct StepNumbers {
  double loss = 0.0;   // mean over the tokens of the global batch
  int64_t tokens = 0;  // that counted
  double grad_norm = 0.0;
  bool nonfinite = false;  // Inf or NaN in the gradient
  int64_t num_zeros = 0;
  double parameter_norm = 0.0;
  int64_t stop_request = 0;  // the greatest of all ranks'
};

/// A step whose numbers are on their way from the device.
class StepInFlight {
 public:
  explicit StepInFlight(const at::Tensor& device_numbers);
  /// Waits until the step is done.
  StepNumbers resolve();

 private:
  at::Tensor host_;
  std::function<void()> wait_;
};

/// Gives the micro-batches of a step, one per call.
using MicroBatches = std::function<MicroBatch(int64_t index)>;

class Trainer {
 public:
  Trainer(const TrainerOptions& options, const Mesh& mesh);

  struct StepPlan {
    int64_t microbatches = 1;
    Optimizer::Hyperparameters hyper;
    int64_t stop_request = 0;  // this rank's wish to stop, agreed with the others through the step's numbers
  };
  /// Forward and backward over all micro-batches, reduction, optimizer. Nothing waits for the device.
  StepInFlight train_step(const MicroBatches& microbatches, const StepPlan& plan);
  /// Mean loss over the tokens of `count` micro-batches on every data-parallel rank, without training.
  StepNumbers evaluate(const MicroBatches& microbatches, int64_t count);

  GPT& model() { return *model_; }
  ParameterSet& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainerOptions& options() const { return options_; }

 private:
  struct LossSum {
    at::Tensor loss;    // f64 [1]
    at::Tensor tokens;  // f64 [1]
  };
  /// Loss summed over the micro-batch's counted tokens, and their number; adds both to `sum`.
  at::Tensor forward(const MicroBatch& batch, LossSum& sum);
  LossSum zero_sum() const;
  void reduce(LossSum& sum) const;
  StepInFlight report(const LossSum& sum, const StepReport& step, int64_t stop_request) const;

  TrainerOptions options_;
  Mesh mesh_;
  ParameterSet parameters_;
  std::unique_ptr<GPT> model_;
  std::unique_ptr<FlatBuffer> buffer_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace teratron
