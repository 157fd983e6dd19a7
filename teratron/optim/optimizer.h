// AdamW or SGD over flat shards, with fp32 master weights and without host synchronization. Master weights of
// a bf16 model are its weights and 16 more bits (kernels/optimizer/optimizer_step.h).
//
// A step sums the gradients that are not yet whole (ParameterOptions::grad_sum, tied parameters), takes the
// L2 norm over the whole model, scales and clips, and updates master weights, moments and the model's copy in
// one pass. A gradient with Inf or NaN sets a flag on the device that turns the pass into a no-op, so the
// weights stay intact regardless of the host. Each buffer is updated by its own ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/optim/param_and_grad_buffer.h"

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

/// One rank's part of a tensor of the training state, for checkpoints: elements `local` of the flattened
/// local shard.
struct StateTensor {
  std::string name;
  Shard shard;
  FlatRange local;
  at::Tensor values;          // 1-D view
  at::Tensor remainder = {};  // low halves of fp32 numbers whose high halves are `values`; else undefined

  at::ScalarType type() const { return remainder.defined() ? at::kFloat : values.scalar_type(); }
  /// Elements [begin, end) of the view.
  StateTensor part(int64_t begin, int64_t end) const;
  /// May return `values` itself.
  at::Tensor read() const;
  void write(const at::Tensor& new_values) const;
};

/// Statistics of a step's gradients: scalars on the device, valid once the step's kernels are done.
struct GradStats {
  at::Tensor grad_norm;  // before clipping, of the unscaled gradients
  at::Tensor found_inf;  // 1 if the step was skipped, or should have been
  at::Tensor num_zeros;  // undefined unless OptimizerOptions::count_zeros
};

class Optimizer {
 public:
  Optimizer(ParamAndGradBuffers& buffers, const Mesh& mesh, const OptimizerOptions& options);

  struct Hyperparameters {
    double lr = 0.0;
    double weight_decay = 0.0;
    double loss_scale = 1.0;  // factor of the loss
    /// Learning rate of the word embeddings and of the output layer (--decoupled-lr); default lr.
    std::optional<double> decoupled_lr = std::nullopt;
    /// f64 [1] on the device: the loss is a sum over this many tokens; undefined: a mean.
    at::Tensor num_tokens = {};
    /// f64 [1] on the device: Inf or NaN is treated as in a gradient; undefined: finite.
    at::Tensor loss = {};
  };
  /// After ParamAndGradBuffers::finish_grad_sync(). Ends with gather_params().
  GradStats step(const Hyperparameters& hyper);

  /// Bytes of moments and master weights on this rank.
  int64_t state_bytes() const;
  /// Factor of the gradients in the last step: 1/loss scale, 1/tokens and clipping, fp32 [1] on the device.
  const at::Tensor& grad_scale() const { return scalars_.grad_scale; }
  /// Steps taken, without skipped ones.
  int64_t steps() const;
  void set_steps(int64_t steps);
  /// Moments and master weights, as "optimizer.exp_avg.<parameter>" and "optimizer.exp_avg_sq.<parameter>"
  /// (SGD: "optimizer.momentum_buffer.<parameter>" if there is momentum), and "optimizer.param.<parameter>"
  /// (only for models below fp32).
  std::vector<StateTensor> state() const;
  /// Recomputes master weights from the model's; call after loading weights without optimizer state.
  void reset_master_weights();
  /// L2 norm of all trained parameters, on the device.
  at::Tensor parameter_norm() const;

 private:
  struct Moment {
    const char* name;
    at::Tensor values;
  };
  struct Slice {
    FlatRange range;
    MasterWeights weights;
    std::vector<Moment> moments;
    at::Tensor groups;
  };
  // A buffer, and the groups of ranks that hold parts of its tensors.
  struct Part {
    ParamAndGradBuffer& buffer;
    Group norm_group;
    std::vector<Slice> slices;
    std::vector<FlatRange> norm_ranges;
    std::vector<FlatRange> counted_ranges;
  };
  Part make_part(ParamAndGradBuffer& buffer) const;
  std::vector<Moment> make_moments(int64_t size, const at::TensorOptions& options) const;
  at::Tensor clipped(const at::Tensor& scale, const at::Tensor& grad_norm) const;
  void set_scalars(const Hyperparameters& hyper, const GradStats& stats);
  void step_slice(const Slice& slice, const at::Tensor& gradient);
  void all_reduce_partial_grads(const ParamAndGradBuffer& buffer) const;
  /// Sum over the model of `of_range` over those ranges that this rank counts.
  at::Tensor sum_over_model(
      std::vector<FlatRange> Part::* ranges,
      const std::function<at::Tensor(const FlatRange&, const ParamAndGradBuffer&)>& of_range) const;

  ParamAndGradBuffers& buffers_;
  Mesh mesh_;
  OptimizerOptions options_;
  std::vector<Part> parts_;
  StepScalars scalars_;
};

}  // namespace teratron
