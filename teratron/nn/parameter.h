// Parameters and their gradients.
//
// A Parameter has a Shard, which says how it is cut over ranks, and a main_grad, which accumulates its
// gradient. Layers create parameters through a Scope, which names them as Megatron-Core does, for checkpoints
// and Hugging Face maps: "decoder.layers.3.mlp.linear_fc1.weight". A name stands for one tensor: parameters
// of the same name and shard index have the same values on all ranks, and pipeline stages that register the
// same name share (tie) it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include "teratron/base/shard.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/fp8_scaling.h"
#include "teratron/nn/lora_options.h"
#include "teratron/nn/param_group.h"

namespace teratron {

/// Initial values. They depend only on the seed, the name and the global index of an element, so they are the
/// same for every parallel layout.
struct Init {
  enum class Kind : uint8_t { constant, normal, xavier, uniform };
  Kind kind = Kind::constant;
  double value = 0.0;  // the constant, the standard deviation, or the bound
  at::Tensor (*map)(const at::Tensor& uniform) = nullptr;

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::constant, 1.0}; }
  static Init normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
  /// Uniform in [-a, a], a = sqrt(6 / (rows + columns)) of the global matrix (Glorot, Bengio 2010).
  static Init xavier() { return {Kind::xavier}; }
  /// Uniform in [-bound, bound].
  static Init uniform(double bound) { return {Kind::uniform, bound}; }
  /// `map`, a function of each element, of values uniform in [-1, 1].
  static Init mapped(at::Tensor (*map)(const at::Tensor& uniform)) { return {Kind::uniform, 1.0, map}; }
};

struct ParameterOptions {
  Shard shard;
  Init init;
  ParamGroup param_group = {};
  /// Axes of the mesh over which this rank's part is replicated and trained: gradients are summed over these
  /// ranks (by buckets, under backward), and the distributed optimizer shards over them.
  AxisSet replicated_over = replica_axes;
  /// Axes over which gradients are summed after backward: {tp} for a replicated parameter of which each rank
  /// sees a sequence shard or some heads.
  AxisSet grad_sum = {};
  std::optional<at::ScalarType> dtype = {};  // null: the model's
  /// false: frozen. It has no gradient and no optimizer state, and no norm counts it.
  bool trainable = true;
};

struct Parameter {
  std::string name;
  ParameterOptions options;
  /// This rank's shard: a leaf that requires a gradient unless it is frozen. Never replaced, only written.
  at::Tensor tensor;
  /// Gradient accumulated over micro-batches, same shape; fp32 (fp64 for fp64). Written by accumulate_grad
  /// and its variants, or by a kernel through grad_sink, followed by accumulate_grad. Undefined if frozen.
  at::Tensor main_grad;
  /// main_grad is stale: the next gradient overwrites it instead of accumulating. Avoids zeroing gradients
  /// each step.
  bool grad_is_stale = false;
  /// Uses in forward whose gradient has not been computed yet; several per micro-batch for a tied weight.
  int64_t pending_grads = 0;
  /// Called when pending_grads drops to 0: the gradient buffer counts it and starts the bucket's reduction.
  std::function<void()> on_grad_ready;
  /// Called before each use in forward: waits for values still being all-gathered.
  std::function<void()> wait_param_gather;

  const Shard& shard() const { return options.shard; }
};

/// fp32, or fp64 for fp64 parameters.
at::ScalarType main_grad_dtype(at::ScalarType dtype);
/// To be called by forward before it uses the parameter: waits for its values and, in grad mode, counts one
/// more pending gradient.
void register_use(Parameter& parameter);
/// Destination for a kernel that reduces a gradient of main_grad's dtype: main_grad if it exists. The
/// kernel's result must be passed to accumulate_grad before the parameter gets any other gradient.
GradSink grad_sink(const Parameter& parameter);
/// For a parameter that may be null; nullopt if it is, or is frozen: no gradient is needed.
std::optional<GradSink> grad_sink(const Parameter* parameter);
/// main_grad += gradient; a gradient written through grad_sink is main_grad itself and only counted. Of a
/// frozen parameter the gradient is dropped.
void accumulate_grad(Parameter& parameter, const at::Tensor& gradient);
/// Calls write(main_grad, add), which overwrites main_grad unless `add`; not if the parameter is frozen.
void accumulate_grad(Parameter& parameter, c10::function_ref<void(const at::Tensor& sum, bool add)> write);
/// main_grad += dy^T x for a weight [out, in], dy [T, out], x [T, in]: one GEMM, no intermediate gradient.
void accumulate_weight_grad(Parameter& parameter, const OutputGradient& dy, const at::Tensor& x);
/// Zeroes main_grad if it is still stale.
void finalize_grad(Parameter& parameter);
/// For autograd functions that accumulate the gradients of these parameters (null: none) themselves: an input
/// that makes backward run if one of them is trained.
at::Tensor grad_anchor(std::initializer_list<const Parameter*> parameters);
/// Makes the parameter untrainable; before it is used and before buffers are made.
void freeze(Parameter& parameter);
/// The parameter for plain ATen code: its gradient is accumulated into main_grad, never into tensor.grad().
at::Tensor autograd_tensor(Parameter& parameter);

/// State without a gradient (torch's register_buffer): saved, loaded and resharded like a parameter. Equal on
/// all ranks that hold the same part.
struct Buffer {
  enum class Kind : uint8_t {
    model,    // part of the model, as its weights
    training  // saved and loaded with the optimizer, as "optimizer.<name>"; a checkpoint may lack it
  };
  std::string name;
  Shard shard;
  at::Tensor tensor;  // contiguous
  Kind kind = Kind::model;
};

/// All parameters of one rank's model in order of registration. Addresses are stable.
class ParameterSet {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    uint64_t seed = 1234;
    std::optional<Fp8Options> fp8 = {};    // null: no layer uses FP8
    std::optional<LoraOptions> lora = {};  // null: no linear layer has adapters
    /// Parameters get their tensors from those of another set (alias()): they have no memory before.
    bool aliases = false;

    /// For tensors of this dtype on this device.
    at::TensorOptions tensors() const { return at::TensorOptions().dtype(dtype).device(device); }
  };
  ParameterSet() = default;
  explicit ParameterSet(const Options& options);
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  const Options& options() const { return options_; }
  Parameter& create(std::string name, const ParameterOptions& options);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  /// The parameter of that name, or null.
  Parameter* find(std::string_view name);
  /// Every parameter shares the memory of the one of the same name in `other`, of the same shape and dtype.
  void alias(ParameterSet& other);
  /// Elements on this rank.
  int64_t numel() const;
  /// The tensor must keep its address.
  void register_buffer(Buffer buffer) { buffers_.push_back(std::move(buffer)); }
  /// All registered, and FP8 scales.
  std::vector<Buffer> buffers();
  /// Registers what happens after each step of the optimizer (also a skipped one), in order: updates of
  /// buffers from what forward and backward recorded.
  void on_step_end(std::function<void(const Mesh&)> update) { updates_.push_back(std::move(update)); }
  /// Collective over the mesh.
  void end_step(const Mesh& mesh) const;
  /// To be called after weights were overwritten; `training_state`: buffers of that kind, too.
  void on_loaded(bool training_state);
  /// Null without Options::fp8.
  Fp8Scaling* fp8() { return fp8_.get(); }

 private:
  Options options_;
  std::unique_ptr<Fp8Scaling> fp8_;
  std::deque<Parameter> parameters_;
  std::map<std::string, Parameter*, std::less<>> by_name_;  // experts are many
  std::vector<Buffer> buffers_;
  std::vector<std::function<void(const Mesh&)>> updates_;
};

/// A prefix in the model's tree of parameter names.
class Scope {
 public:
  explicit Scope(ParameterSet& set, std::string prefix = "") : set_(&set), prefix_(std::move(prefix)) {}
  Scope operator/(std::string_view name) const;
  /// A scope of this prefix, whose linear layers use FP8 if the model does.
  Scope with_fp8() const;
  /// Scopes of this prefix, whose parameters are frozen, or replicated over these axes (ParameterOptions).
  Scope frozen() const;
  Scope replicated_over(AxisSet axes) const;
  /// A scope of this prefix, whose linear layers have no adapters.
  Scope without_lora() const;
  /// Null: no linear layer has adapters.
  const LoraOptions* lora() const { return adapts_ && options().lora ? &*options().lora : nullptr; }
  const std::string& prefix() const { return prefix_; }
  /// Null: linear layers use the model's dtype.
  Fp8Scaling* fp8() const { return fp8_; }
  Parameter& parameter(std::string_view name, const ParameterOptions& options) const;
  const ParameterSet::Options& options() const { return set_->options(); }
  ParameterSet& set() const { return *set_; }

 private:
  std::string full_name(std::string_view name) const;
  ParameterSet* set_;
  std::string prefix_;
  Fp8Scaling* fp8_ = nullptr;
  std::optional<AxisSet> replicated_over_;
  bool trainable_ = true;
  bool adapts_ = true;
};

}  // namespace teratron
