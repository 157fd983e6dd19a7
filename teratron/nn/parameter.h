// Parameters and where they live.
//
// A Parameter knows how it is cut (Shard) and owns the place where its gradient is gathered (main_grad).
// Layers create theirs through a Scope, which gives each a name: the names of Megatron-Core, so that
// checkpoints and Hugging Face's maps speak of "decoder.layers.3.mlp.linear_fc1.weight".
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "teratron/base/shard.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/fp8_scaling.h"

namespace teratron {

/// How a parameter starts. Values depend on the seed, the name and the global index of an element only, so
/// they are the same for every layout.
struct Init {
  enum class Kind : uint8_t { constant, normal, xavier };
  Kind kind = Kind::constant;
  double value = 0.0;  // the constant, or the standard deviation

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::constant, 1.0}; }
  static Init normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
  /// Uniform in [-a, a], a = sqrt(6 / (rows + columns)) of the global matrix (Glorot, Bengio 2010).
  static Init xavier() { return {Kind::xavier}; }
};

struct ParameterOptions {
  Shard shard;
  Init init;
  bool weight_decay = true;
  /// The tensor is replicated over the tensor-parallel ranks, but each sees a part of the sequence, so its
  /// gradient is summed over them (sequence parallelism).
  bool sum_over_tensor_parallel = false;
  /// The first and the last pipeline stage hold a copy each (tied word embeddings): the gradients of both are summed,
  /// and the tensor counts once.
  bool tied_over_stages = false;
};

struct Parameter {
  std::string name;
  ParameterOptions options;
  /// This rank's part: a leaf that requires a gradient, in the model's dtype. Never replaced, only written.
  at::Tensor tensor;
  /// Gradient summed over micro-batches, same shape; fp32 (fp64 for fp64). Written through
  /// accumulate_gradient and what stands on it, or in gradient_place by a kernel whose add_gradient follows.
  at::Tensor main_grad;
  /// main_grad holds what is of no use any more: the next gradient is written over it, not added. So nobody fills a
  /// step's gradients with zeros.
  bool main_grad_is_void = false;
  /// Forward uses whose gradient has not come yet. A tied weight has several per micro-batch.
  int64_t pending_uses = 0;
  /// Called when pending_uses falls to 0: the gradient buffer starts its reduction there.
  std::function<void()> on_gradient;
  /// Called before each use in forward: waits for values that are still on their way from other ranks.
  std::function<void()> before_use;

  const Shard& shard() const { return options.shard; }
};

/// fp32, or fp64 for fp64 parameters.
at::ScalarType gradient_dtype(const Parameter& parameter);
/// Forward says that it uses the parameter: from here on its values are there, and one gradient will come (none when
/// gradients are off).
void expect_gradient(Parameter& parameter);
/// Where a kernel that sums a gradient of `main_grad`'s type may put it: main_grad itself, where there is one. Until
/// add_gradient is called with what the kernel returned, no other gradient of this parameter may come.
SumInto gradient_place(const Parameter& parameter);
/// The same for a parameter that may be missing: nothing then.
WantedSum gradient_place(const Parameter* parameter);
/// Backward delivers it: main_grad += gradient, unless that is main_grad itself, by gradient_place.
void add_gradient(Parameter& parameter, const at::Tensor& gradient);
/// The same by `write(main_grad, add)`, which adds to what it holds or, without `add`, writes over it.
void accumulate_gradient(Parameter& parameter,
                         const std::function<void(const at::Tensor& sum, bool add)>& write);
/// main_grad is a sum from here on: zero if no gradient has come since it became void.
void finish_gradient(Parameter& parameter);
/// main_grad += dy^T x for a weight [out, in], dy [T, out], x [T, in]; one GEMM, no intermediate gradient.
void add_weight_gradient(Parameter& parameter, const OutputGradient& dy, const at::Tensor& x);
/// The parameter for plain ATen code: its gradient goes into main_grad, never into tensor.grad().
at::Tensor use(Parameter& parameter);

/// All parameters of one rank's model in order of registration. Addresses are stable.
class ParameterSet {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    uint64_t seed = 1234;
    std::optional<Fp8Options> fp8 = {};  // how layers that may multiply in FP8 do
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
  /// Elements on this rank.
  int64_t numel() const;
  /// Null without Options::fp8.
  Fp8Scaling* fp8() { return fp8_.get(); }

 private:
  Options options_;
  std::unique_ptr<Fp8Scaling> fp8_;
  std::deque<Parameter> parameters_;
};

/// A place in the model's tree of names.
class Scope {
 public:
  explicit Scope(ParameterSet& set, std::string prefix = "") : set_(&set), prefix_(std::move(prefix)) {}
  Scope operator/(std::string_view name) const;
  /// The same place, whose linear layers multiply in FP8 if the model does so at all.
  Scope in_fp8() const;
  /// Null: linear layers multiply in the model's dtype.
  Fp8Scaling* fp8() const { return fp8_; }
  Parameter& parameter(std::string_view name, const ParameterOptions& options) const;
  const ParameterSet::Options& options() const { return set_->options(); }
  ParameterSet& set() const { return *set_; }

 private:
  std::string full_name(std::string_view name) const;
  ParameterSet* set_;
  std::string prefix_;
  Fp8Scaling* fp8_ = nullptr;
};

}  // namespace teratron
