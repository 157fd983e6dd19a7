// AdamW or SGD over flat shards, with fp32 master weights and no host sync. Those of a bf16 model are its weights and 16
// bits more (kernels/optimizer_step.h).
//
// A step: gradients of replicated parameters are summed over the tensor-parallel ranks (sequence
// parallelism) and those of tied word embeddings over first and last stage, the L2 norm is taken once over the
// whole model, gradients are scaled and clipped, and one pass updates master weights, moments and the model's
// copy. A gradient that holds Inf or NaN raises a flag on the device that makes the pass a no-op, so the weights
// stay intact whatever the host does later.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/optim/flat_buffer.h"

namespace teratron {

enum class OptimizerKind : uint8_t { adam, sgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adam;
  AdamOptions adam;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;      // 0: no clipping
  bool skip_nonfinite = true;  // a step with Inf or NaN changes nothing
  bool count_zeros = false;
};

/// One rank's part of one tensor of the training state, for checkpoints: elements [begin, end) of the
/// flattened local part of the tensor that `shard` describes.
struct StateTensor {
  std::string name;
  Shard shard;
  FlatRange local;
  at::Tensor values;          // 1-D view
  at::Tensor remainder = {};  // values are halves of fp32 numbers, here are the others; else undefined

  at::ScalarType type() const { return remainder.defined() ? at::kFloat : values.scalar_type(); }
  /// The same of elements [begin, end) of the view.
  StateTensor part(int64_t begin, int64_t end) const;
  /// The numbers, which may be `values` itself.
  at::Tensor read() const;
  void write(const at::Tensor& numbers) const;
};

/// What a step tells, still on the device: f64 scalars, valid once the step's work is done.
struct StepReport {
  at::Tensor grad_norm;  // before clipping, of the unscaled gradients
  at::Tensor found_inf;  // 1 when the step was skipped or should have been
  at::Tensor num_zeros;  // undefined unless asked for
};

class Optimizer {
 public:
  Optimizer(FlatBuffer& buffer, const Mesh& mesh, const OptimizerOptions& options);

  struct Hyperparameters {
    double lr = 0.0;
    double weight_decay = 0.0;
    double loss_scale = 1.0;  // the loss was multiplied by this
    /// Learning rate of the word embeddings and of the output layer (--decoupled-lr); default lr.
    std::optional<double> decoupled_lr = std::nullopt;
    /// The gradients are those of a sum over so many tokens, f64 [1] on the device; undefined: of a mean.
    at::Tensor count = {};
    /// f64 [1] on the device; a step whose loss is Inf or NaN counts as one whose gradient is. Undefined: finite.
    at::Tensor loss = {};
  };
  /// After FlatBuffer::finish_reduction(). Ends with gather_parameters().
  StepReport step(const Hyperparameters& hyper);

  /// Bytes of moments and master weights on this rank.
  int64_t state_bytes() const;
  /// By what the last step multiplied gradients: 1/loss scale, 1/count and clipping together, fp32 [1] on the device.
  const at::Tensor& gradient_factor() const { return scalars_.grad_scale; }
  /// Number of steps that changed the weights.
  int64_t steps() const;
  void set_steps(int64_t steps);
  /// Moments and master weights, as "optimizer.exp_avg.<parameter>" and "optimizer.exp_avg_sq.<parameter>"
  /// (SGD: "optimizer.momentum_buffer.<parameter>", nothing without momentum), and "optimizer.param.<parameter>"
  /// (only of models below fp32).
  std::vector<StateTensor> state() const;
  /// Master weights follow from the model's: for who has written those, as in loading weights without optimizer state.
  void reset_master_weights();
  /// L2 norm of all parameters, on the device.
  at::Tensor parameter_norm() const;

 private:
  struct Moment {
    const char* name;
    at::Tensor values;
  };
  struct Slice {
    FlatRange range;
    Weights weights;
    std::vector<Moment> moments;
    at::Tensor groups;
  };
  std::vector<Moment> make_moments(int64_t size) const;
  Weights master_weights(const FlatRange& range) const;
  at::Tensor clipped(const at::Tensor& scale, const at::Tensor& grad_norm) const;
  void set_scalars(const Hyperparameters& hyper, const StepReport& report);
  void step_slice(const Slice& slice);
  void sum_sequence_parallel_gradients();
  void sum_tied_gradients();
  /// Sums over what this rank counts: a tensor that several ranks of the model hold counts on one of them.
  at::Tensor sum_over_model(const std::vector<FlatRange>& ranges,
                            const std::function<at::Tensor(const FlatRange&)>& of_range) const;
  void add_state(const Slice& slice, const FlatBuffer::Entry& entry, std::vector<StateTensor>& out) const;

  FlatBuffer& buffer_;
  OptimizerOptions options_;
  Group tensor_parallel_;
  Group embedding_group_;
  Group norm_group_;
  std::vector<Slice> slices_;
  std::vector<FlatRange> summed_;
  std::vector<FlatRange> counted_tensors_;
  StepScalars scalars_;
};

}  // namespace teratron
