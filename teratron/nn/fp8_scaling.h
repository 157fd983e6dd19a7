// Scales of a model's FP8 matrices (Micikevicius et al. 2022).
//
// A linear layer has three: of its input, its weight and its output gradient; so have the experts of a layer
// together, for each of their linear layers. With delayed scaling a scale follows from the largest magnitudes
// (amax) of earlier steps,
//
//   scale = largest value of the format / amax / 2^margin
//
// so that a cast is one pass. Scales are updated once per step, identically on all ranks. Without a history,
// in the first step, a tensor is scaled by its own amax. With tensorwise ("current") scaling every tensor
// always is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/kernels/fp8/fp8.h"

namespace teratron {

struct Fp8Options {
  enum class Recipe : uint8_t { delayed, tensorwise };
  Recipe recipe = Recipe::delayed;
  Fp8Format gradients = Fp8Format::e5m2;  // of outputs; inputs and weights are e4m3
  bool weight_gradients = true;           // dW in FP8, else from bf16 inputs
  // Delayed scaling:
  int64_t margin = 0;
  int64_t history = 1;      // steps
  bool most_recent = true;  // use the last step's amax, else the largest of the history
};

/// A matrix [R, C] that is computed when a GEMM needs it. If the kernel that computes it can cast to FP8, it
/// never exists in the model's dtype. One of both functions is called, once.
struct LazyTensor {
  std::function<at::Tensor()> compute;
  std::function<Fp8Matrix(const Fp8Cast& cast)> compute_fp8;

  LazyTensor(std::function<at::Tensor()> compute, std::function<Fp8Matrix(const Fp8Cast&)> compute_fp8)
      : compute(std::move(compute)), compute_fp8(std::move(compute_fp8)) {}
  /// An existing tensor.
  LazyTensor(const at::Tensor& x)
      : compute([x] { return x; }),
        compute_fp8([x](const Fp8Cast& cast) { return cast_to_fp8(x.contiguous(), cast); }) {}
};

class Fp8Scaling {
 public:
  enum class Role : uint8_t { input, weight, output_grad };
  static constexpr int64_t roles = 3;

  Fp8Scaling(const Fp8Options& options, at::Device device) : options_(options), device_(device) {}
  const Fp8Options& options() const { return options_; }

  /// Registers a linear layer by the name of its weight, of so many elements, and returns its index; all
  /// before the first cast.
  int64_t add_layer(std::string weight, int64_t elements);
  /// Elements of all weights.
  int64_t weight_elements() const { return weight_elements_; }

  struct Matrix {
    int64_t layer = 0;
    Role role = Role::input;
  };
  struct Outputs {
    bool rows = true;
    bool columns = true;
    bool record_amax = true;            // for the history
    const Fp8Groups* groups = nullptr;  // null: rows are not in groups
  };
  /// x in FP8, by x.compute_fp8 if the scale is known beforehand, else from x.compute.
  Fp8Matrix cast(const LazyTensor& x, const Matrix& matrix, const Outputs& outputs);

  /// Once per step, after the optimizer: new scales from the amaxes, reduced over `ranks`. A scale without a
  /// positive finite amax stays.
  void update(const Group& ranks);
  /// Changes with the weights; a weight cast in an earlier step is stale.
  int64_t step() const { return step_; }
  void invalidate_weights() { step_ += 1; }

  /// State for an exact resume, per layer: scales [3] and amaxes [3, history], newest first. Empty with
  /// tensorwise scaling.
  struct State {
    std::string name;  // "fp8_scale.<weight>", "fp8_amax_history.<weight>"
    std::vector<int64_t> shape;
    at::Tensor values;
  };
  std::vector<State> state();
  /// To be called after state() and the weights were overwritten.
  void on_state_loaded();

 private:
  void allocate();
  Fp8Format format(Role role) const {
    return role == Role::output_grad ? options_.gradients : Fp8Format::e4m3;
  }

  Fp8Options options_;
  at::Device device_;
  std::vector<std::string> layers_;
  int64_t weight_elements_ = 0;
  int64_t step_ = 0;
  bool has_history_ = false;
  // fp32, by layer and role.
  at::Tensor largest_;
  at::Tensor scales_;
  at::Tensor scales_inv_;
  at::Tensor amaxes_;     // of the current step
  at::Tensor histories_;  // [.., history]
};

}  // namespace teratron
