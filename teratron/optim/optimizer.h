// Steps optimizer rules (optim/optimizer_rule.h) over flat shards, with fp32 master weights and without host
// synchronization. The master weights of a bf16 model are its weights and 16 more bits
// (kernels/optimizer/optimizer_step.h).
//
// A step completes the gradients (optim/finalize_grads.h), takes their L2 norm over the whole model, scales
// and clips them. Then each buffer's rule updates master weights, states and the model's copy. A gradient
// with Inf or NaN sets a flag on the device that turns the updates into no-ops, so the weights stay intact
// regardless of the host. Each buffer is updated by its own ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/nn/param_group.h"
#include "teratron/optim/optimizer_rule.h"
#include "teratron/optim/param_and_grad_buffer.h"

namespace teratron {

struct OptimizerOptions {
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
    /// Learning rate of ParamGroup::decoupled_lr; default lr.
    std::optional<double> decoupled_lr = std::nullopt;
    /// f64 [1] on the device: the loss is a sum over this many tokens; undefined: a mean.
    at::Tensor num_tokens = {};
    /// f64 [1] on the device: Inf or NaN is treated as in a gradient; undefined: finite.
    at::Tensor loss = {};
  };
  /// After ParamAndGradBuffers::finish_grad_sync(). Ends with gather_params().
  GradStats step(const Hyperparameters& hyper);

  /// Bytes of the rules' states and of master weights on this rank.
  int64_t state_bytes() const;
  /// Whether some rank has any.
  bool has_state() const;
  /// Factor of the gradients in the last step: 1/loss scale, 1/tokens and clipping, fp32 [1] on the device.
  const at::Tensor& grad_scale() const { return scalars_.grad_scale; }
  /// Steps taken, without skipped ones.
  int64_t steps() const;
  void set_steps(int64_t steps);
  /// The rules' states as "optimizer.<state>.<parameter>", such as "optimizer.exp_avg.<parameter>". In models
  /// below fp32 also the master weights, as "optimizer.param.<parameter>".
  std::vector<StateTensor> state() const;
  /// Recomputes master weights from the model's; call after loading weights without optimizer state.
  void reset_master_weights();
  /// After parameters got other groups (ParamGroups).
  void update_groups();
  /// L2 norm of all trained parameters, on the device.
  at::Tensor parameter_norm() const;

 private:
  struct Slice {
    FlatRange range;
    OptimizerRule::Slice tensors;
  };
  // A buffer, and the groups of ranks that hold parts of its tensors.
  struct Part {
    ParamAndGradBuffer& buffer;
    std::vector<RuleState> states;
    Group norm_group;
    std::vector<Slice> slices;
    std::vector<FlatRange> norm_ranges;
    std::vector<FlatRange> counted_ranges;
    at::Tensor groups;  // row in groups_ of each block of 64 elements; slices have views of it
  };
  Part make_part(ParamAndGradBuffer& buffer);
  at::Tensor block_groups(const ParamAndGradBuffer& buffer);
  void allocate_group_scalars();
  at::Tensor clipped(const at::Tensor& scale, const at::Tensor& grad_norm) const;
  void set_scalars(const Hyperparameters& hyper, const GradStats& stats);
  /// Sum over the model of `of_range` over those ranges that this rank counts.
  at::Tensor sum_over_model(
      std::vector<FlatRange> Part::* ranges,
      const std::function<at::Tensor(const FlatRange&, const ParamAndGradBuffer&)>& of_range) const;

  ParamAndGradBuffers& buffers_;
  Mesh mesh_;
  OptimizerOptions options_;
  std::vector<ParamGroup> groups_;  // rows of StepScalars
  std::vector<Part> parts_;
  StepScalars scalars_;
  std::vector<double> lr_, weight_decay_;  // by group, as last written to the device
};

}  // namespace teratron
