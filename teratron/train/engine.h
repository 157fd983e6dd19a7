// One rank's part of the model with its gradients and optimizer: what a training loop drives.
//
//   Trainer trainer(options, mesh);
//   StepInFlight step = trainer.train_step(microbatches, {.lr = 3e-4});
//   StepNumbers numbers = step.resolve();          // the first time the host waits
//
// Tensor, sequence, pipeline and data parallelism and the distributed optimizer change where numbers are computed,
// not what they are: every layout gives one rank's losses, gradients and weights up to rounding.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/gpt/gpt.h"
#include "teratron/optim/flat_buffer.h"
#include "teratron/optim/optimizer.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/telemetry/timers.h"
#include "teratron/train/train_step.h"

namespace teratron {

class MicrobatchGraphs;
struct MessageShape;

struct TrainerOptions {
  GPTConfig model;
  ModelProvider provider = nullptr;  // null: GPT
  PipelineLayout layout = {};        // empty: all layers on one stage
  int64_t microbatch_group = 0;      // of the interleaved schedule; 0: as many as stages
  bool overlap_p2p = true;           // receives are posted one computation early
  OptimizerOptions optimizer;
  at::ScalarType dtype = at::kFloat;
  std::optional<Fp8Options> fp8 = {};  // linear layers multiply in FP8 (the model says which)
  at::Device device = at::kCPU;
  uint64_t seed = 1234;
  bool sequence_parallel = false;
  bool overlap_tensor_parallel = true;  // collectives of backward run under its GEMMs
  bool sharded_optimizer = false;
  bool overlap_param_gather = false;
  bool average_in_collective = false;
  /// Gradients are those of the sum of all losses over the sum of all counts of the global batch. Without it micro-batches
  /// weigh the same, whatever they count.
  bool per_token_loss = false;
  bool reduce_in_bf16 = false;
  int64_t bucket_size = 40'000'000;  // elements of a gradient bucket
  bool report_parameter_norm = false;
  /// Steps after which micro-batches of the training are replayed as CUDA graphs (microbatch_graphs.h); 0: they never
  /// are. Without tensor and pipeline parallelism. Gradients are then reduced after the last backward, not under it.
  int64_t graphs_after = 0;
  /// What is done with a micro-batch at the end of the model; null: Megatron-LM's GPT training. Must outlive it.
  TrainStep* step = nullptr;
  Timers* timers = nullptr;  // may be null; must outlive it
};

/// What a step did, on the host. The same on every rank.
struct StepNumbers {
  double loss = 0.0;   // mean over the tokens of the global batch
  int64_t tokens = 0;  // that counted
  double grad_norm = 0.0;
  bool nonfinite = false;  // Inf or NaN in the loss or the gradient
  int64_t num_zeros = 0;
  double parameter_norm = 0.0;
  int64_t stop_request = 0;  // the greatest of all ranks'
  int64_t progress = 0;      // the least of all ranks'
  /// From the end of the step before to the end of this one, where the work is done; 0 for the first.
  double seconds = 0.0;
  std::vector<double> metrics = {};  // means of the train step's metrics
};

/// When a step's work ended.
struct StepEnd;

/// A step whose numbers are on their way from the device.
class StepInFlight {
 public:
  /// `before`: the end of the step before; may be null.
  explicit StepInFlight(const at::Tensor& device_numbers, std::shared_ptr<const StepEnd> before = nullptr);
  /// Waits until the step is done.
  StepNumbers resolve();
  std::shared_ptr<const StepEnd> end() const { return end_; }

 private:
  at::Tensor host_;
  std::shared_ptr<const StepEnd> before_;
  std::shared_ptr<const StepEnd> end_;
};

/// Gives the micro-batches of a step: called once per index, in order. Stages other than the first and the last use
/// positions and document bounds alone.
using MicroBatches = std::function<MicroBatch(int64_t index)>;

/// Bytes that a rank holds from the first to the last step.
struct StateMemory {
  int64_t parameters = 0;  // elements
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // moments and master weights
};

/// "memory of weights, gradients and optimizer: 2.0 + 4.0 + 2.5 = 8.5 bytes per parameter, 1.23 GB".
std::string to_string(const StateMemory& memory);

class Trainer {
 public:
  Trainer(const TrainerOptions& options, const Mesh& mesh);
  ~Trainer();

  struct StepPlan {
    int64_t microbatches = 1;
    Optimizer::Hyperparameters hyper;
    // What ranks agree on through the step's numbers:
    int64_t stop_request = 0;  // this rank's wish to stop
    int64_t progress = 0;      // of whatever this rank does beside the training
  };
  /// Forward and backward over all micro-batches, reduction, optimizer. Nothing waits for the device.
  StepInFlight train_step(const MicroBatches& microbatches, const StepPlan& plan);
  /// Mean loss over the tokens of `count` micro-batches on every data-parallel rank, without training.
  StepNumbers evaluate(const MicroBatches& microbatches, int64_t count);

  /// Logits [S, B, vocabulary] of one micro-batch, without dropout, on every tensor-parallel rank of the last pipeline
  /// stage; undefined on the others. Collective over the model.
  at::Tensor logits(const MicroBatch& batch);

  /// Where a step's numbers stop being finite.
  struct NonFinite {
    std::string part;                     // that gave the first such output, or whose gradient it is
    bool gradient = false;                // all outputs are finite
    std::optional<int64_t> first_sample;  // of the micro-batch, where it is known
  };
  /// Runs forward and backward over a step's micro-batches once more and looks at the output of every part of this
  /// rank's model, then, if all are finite, at the gradients, those that backward computes first before the others.
  /// Nothing is updated, but the gradients of the step are lost. Collective over the model; waits for the device.
  std::optional<NonFinite> find_nonfinite(const MicroBatches& microbatches, const StepPlan& plan);

  ParameterSet& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  FlatBuffer& buffer() { return *buffer_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainerOptions& options() const { return options_; }
  StateMemory memory() const;

 private:
  struct LossSum {
    at::Tensor loss;     // f64 [1]
    at::Tensor tokens;   // f64 [1]
    at::Tensor metrics;  // f64 [number of them]
  };
  struct Pass {
    int64_t microbatches = 1;
    bool training = true;
    at::Tensor scale = {};         // of each micro-batch's mean loss in backward
    bool reduces = true;           // gradients over the data-parallel ranks
    bool captured = false;         // nothing waits for the device
    at::Tensor* logits = nullptr;  // wanted instead of losses
  };
  /// Runs the schedule; the loss sums are this rank's, zero on stages without the head.
  LossSum run(const MicroBatches& microbatches, const Pass& pass);
  /// The same onto `sum`.
  void run_onto(LossSum& sum, const MicroBatches& microbatches, const Pass& pass);
  /// Forward and backward of a training step, by graphs where there are some.
  LossSum forward_backward(const MicroBatches& microbatches, const StepPlan& plan);
  LossSum replay(const MicroBatches& microbatches, const StepPlan& plan);
  /// The chunk's output, or at the end of the model the loss to differentiate; adds to `sum` there.
  at::Tensor forward(Model& chunk, const at::Tensor& input, const MicroBatch& batch, LossSum& sum);
  at::Tensor forward_logits(Model& chunk, const at::Tensor& input, const MicroBatch& batch,
                            at::Tensor& logits);
  at::Tensor loss_scale(const StepPlan& plan) const;
  LossSum zero_sum() const;
  MessageShape message_shape(const MicroBatch& batch) const;
  void reduce(LossSum& sum) const;
  StepInFlight report(const LossSum& sum, const StepReport& step, const StepPlan& plan) const;

  TrainerOptions options_;
  TrainStep default_step_;
  TrainStep& step_;
  Mesh mesh_;
  ParameterSet parameters_;
  std::vector<std::unique_ptr<Model>> chunks_;  // of this stage, in the model's order
  std::unique_ptr<FlatBuffer> buffer_;
  std::unique_ptr<Optimizer> optimizer_;
  std::shared_ptr<const StepEnd> last_end_;  // of the last step; null before the first
  // What graphs read and write beside parameters and micro-batches.
  struct Kept {
    LossSum sum;
    at::Tensor scale;
  };
  Kept kept_;
  std::unique_ptr<MicrobatchGraphs> graphs_;  // null: none
};

}  // namespace teratron
