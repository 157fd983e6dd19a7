// One rank's model chunks with their gradient buffers and optimizer, and one step over them.
//
//   TrainEngine engine(options, mesh);
//   PendingStep step = engine.train_step(microbatches, {.hyper = {.lr = 3e-4}});
//   StepResult result = step.wait();  // the first time the host waits
//
// Tensor, sequence, pipeline and data parallelism and the distributed optimizer change where numbers are
// computed, not their values: every layout computes one rank's losses, gradients and weights up to rounding.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/model_plan.h"
#include "teratron/optim/param_and_grad_buffer.h"
#include "teratron/optim/param_groups.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/telemetry/timers.h"
#include "teratron/train/engine/microbatch_buffer.h"
#include "teratron/train/engine/step_result.h"
#include "teratron/train/engine/train_step.h"

namespace teratron {

class GraphChoice;
class MicrobatchGraphs;
struct ChunkMessages;

struct ParallelOptions {
  PipelineLayout pipeline = {};  // empty: all layers on one stage
  int64_t microbatch_group = 0;  // of the interleaved schedule; 0: as many as stages
  bool overlap_p2p = true;       // receives are posted one computation early
  bool sequence_parallel = false;
  bool overlap_tensor_parallel = true;  // collectives of backward run under its GEMMs
};

struct PrecisionOptions {
  at::ScalarType dtype = at::kFloat;
  std::optional<Fp8Options> fp8 = {};  // GEMMs of the linear layers that the model selects
};

struct EngineOptions {
  ModelPlan model = {};
  ParallelOptions parallel = {};
  OptimizerRules rules = {{adam_rule()}};
  ParamGroupFunction param_group = nullptr;            // of the program; null: the layers' groups
  std::vector<ParamGroupRule> param_group_rules = {};  // over these
  OptimizerOptions optimizer = {};
  PrecisionOptions precision = {};
  /// Only adapters, and heads that a finetuning adds, are trained.
  std::optional<LoraOptions> lora = {};
  at::Device device = at::kCPU;
  uint64_t seed = 1234;
  ParamAndGradBuffer::Options reduction = {};  // with per_token_loss nothing is averaged
  /// Gradients of the sum of all losses over the sum of all counts in the global batch. Without it,
  /// micro-batches have equal weight, whatever their counts.
  bool per_token_loss = false;
  bool report_parameter_norm = false;
  bool save_batches = false;   // in PendingStep::batches, for find_nonfinite()
  bool return_logits = false;  // evaluations compute logits, for TrainStep::on_logits()
  /// Steps after which micro-batches are replayed as CUDA graphs (graphs/microbatch_graphs.h); 0: never.
  /// Requires TP = PP = CP = EP = ETP = 1. Gradients are then reduced after the last backward, not under it.
  int64_t graphs_after = 0;
  /// Only if the GPU waits for the host in so many steps, and graphs make them shorter
  /// (graphs/graph_choice.h). No effect with a model or train step that might wait for the device. finish()
  /// is called for every step.
  bool graphs_where_host_bound = false;
  TrainStep* step = nullptr;  // null: the losses of the model; must outlive the engine
  Timers* timers = nullptr;   // may be null; must outlive the engine
};

/// Micro-batches of an evaluation. Layers communicate between replicas that share experts, so every rank
/// computes `most`: one that has fewer repeats its last one, whose losses do not count.
struct EvaluationSize {
  int64_t mine = 0;  // of this rank, at least 1
  int64_t most = 0;  // of the rank that has most
};
/// Called on the last pipeline stage with the logits of a micro-batch, as TrainStep::on_logits(). `counts`:
/// it is one of EvaluationSize::mine.
using LogitsHook = std::function<void(const at::Tensor& logits_SBV, const MicroBatch& batch, bool counts)>;
/// How many micro-batches come after the first `done` ones of `most`, before the next question; 0 ends the
/// evaluation. The same on all ranks.
using NextPart = std::function<int64_t(int64_t done, int64_t most)>;

class TrainEngine {
 public:
  TrainEngine(const EngineOptions& options, const Mesh& mesh);
  ~TrainEngine();

  /// Forward and backward over all micro-batches, gradient reduction, optimizer. Does not wait for the
  /// device.
  PendingStep train_step(const MicroBatches& microbatches, const StepInputs& inputs) {
    return update(gradients(microbatches, inputs), inputs);
  }
  /// The two halves of train_step(), with the same inputs. Gradients that no update() follows are lost with
  /// the next ones.
  StepGradients gradients(const MicroBatches& microbatches, const StepInputs& inputs);
  PendingStep update(StepGradients gradients, const StepInputs& inputs);
  /// After PendingStep::wait(), in the order of the steps: what became of CUDA graphs, once, as a sentence.
  std::optional<std::string> finish(const StepResult& result);
  /// Whether CUDA graphs ask for micro-batches of the same shapes: rows are not packed for the next step.
  bool fixes_shapes() const;
  /// Mean losses over `count` micro-batches on every data-parallel rank, without training.
  StepResult evaluate(const MicroBatches& microbatches, int64_t count);
  /// Evaluates in parts. Nothing if `next_part` ended it.
  std::optional<StepResult> evaluate(const MicroBatches& microbatches, const EvaluationSize& size,
                                     const NextPart& next_part);
  /// With EngineOptions::return_logits evaluations also call this; null: nothing.
  void on_logits(LogitsHook hook) { logits_hook_ = std::move(hook); }

  /// Logits [S, B, vocabulary] of one micro-batch, without dropout, on every tensor-parallel rank of the last
  /// pipeline stage; undefined on the others. Collective over the model.
  at::Tensor logits(const MicroBatch& batch);

  /// Where the numbers of a step stop being finite.
  struct NonFinite {
    std::string part;              // submodule with the first such output, or parameter with such a gradient
    bool gradient = false;         // all outputs are finite
    at::Tensor sample_ids_B = {};  // of the micro-batch; undefined where unknown
    int64_t position = 0;          // of the output among those of the rank
  };
  /// Repeats forward and backward over the saved micro-batches of a step and checks the output of every
  /// submodule of this rank, then, if all are finite, the gradients in the order of backward. Updates
  /// nothing, but the step's gradients are lost. Collective over the model; waits for the device.
  std::optional<NonFinite> find_nonfinite(const PendingStep& step);

  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  ParamAndGradBuffers& buffers() { return *buffers_; }
  const ParamGroupChoices& param_groups() const { return param_groups_->choices(); }
  /// Rules in place of EngineOptions::param_group_rules. Collective.
  void set_param_group_rules(std::vector<ParamGroupRule> rules);
  const Mesh& mesh() const { return mesh_; }
  const EngineOptions& options() const { return options_; }

 private:
  struct LossFactors {
    at::Tensor scale;   // of each micro-batch's mean loss in backward
    at::Tensor counts;  // AuxiliaryLosses::loss_counts
  };
  struct ForwardBackwardArgs {
    int64_t microbatches = 1;
    bool training = true;
    int64_t own = std::numeric_limits<int64_t>::max();  // the first ones, whose losses are added
    LossFactors factors = {};                           // none without backward
    bool reduces = true;                                // gradients over the replicas
    bool captured = false;                              // by a CUDA graph: no timers
    at::Tensor* logits = nullptr;                       // receives logits instead of computing losses
    bool return_logits = false;                         // beside losses
  };
  /// Runs the pipeline schedule and adds this rank's losses to `scalars`; nothing on stages without the head.
  void run_schedule_into(DeviceScalars& scalars, MicroBatchBuffer& batches, const ForwardBackwardArgs& args);
  /// Forward and backward of a training step, by CUDA graphs after the warm-up.
  DeviceScalars forward_backward(MicroBatchBuffer& batches, const StepInputs& inputs);
  /// With counts it reads all of the step's micro-batches.
  LossFactors loss_factors(MicroBatchBuffer& batches, const StepInputs& inputs) const;
  DeviceScalars replay_graphs(MicroBatchBuffer& batches, const StepInputs& inputs);
  void set_up_graphs(const EngineOptions& options);
  /// This rank's vote on graphs for the step that was launched.
  int64_t vote(const StepGradients& gradients);
  /// The loss to differentiate; also added to `scalars`.
  at::Tensor loss(Model& chunk, const Activations& output, const MicroBatch& batch, DeviceScalars& scalars);
  at::Tensor logits(Model& chunk, const Activations& output, const MicroBatch& batch);
  void return_logits(Model& chunk, const Activations& output, const MicroBatch& batch, bool counts);
  at::Tensor loss_scale(const StepInputs& inputs) const;
  DeviceScalars zero_scalars() const;
  /// The channels that cross the bound before layer `layer`.
  std::vector<const Channel*> channels_at(int64_t layer) const;
  ChunkMessages messages(const StageSpec& stage, const MicroBatch& batch) const;
  void sum_over_ranks(DeviceScalars& scalars) const;
  void add_stats(DeviceScalars& scalars, const GradStats& stats, const StepInputs& inputs) const;

  EngineOptions options_;
  ModelLosses default_step_;
  TrainStep& step_;
  Mesh mesh_;
  ParameterSet parameters_;
  std::vector<std::unique_ptr<Model>> chunks_;  // of this stage, in the model's order
  std::unique_ptr<ParamGroups> param_groups_;
  std::unique_ptr<ParamAndGradBuffers> buffers_;
  std::unique_ptr<Optimizer> optimizer_;
  LogitsHook logits_hook_;
  std::shared_ptr<const PendingStep::End> last_end_;  // of the last step; null before the first
  // Tensors that graphs read and write in addition to parameters and micro-batches.
  struct GraphState {
    DeviceScalars scalars;
    LossFactors factors;
  };
  std::optional<GraphState> graph_state_;
  std::unique_ptr<MicrobatchGraphs> graphs_;   // null: none
  std::unique_ptr<GraphChoice> graph_choice_;  // null: graphs_ are used in any case
};

}  // namespace teratron
