// Scales of a model's FP8 matrices (Micikevicius et al. 2022).
//
// Every linear layer has three: its input, its weight and the gradient of its output. With delayed scaling a scale
// follows from the largest magnitudes (amax) of earlier steps,
//
//   scale = largest value of the format / amax / 2^margin
//
// so that casting is one pass. It changes once per step, on all ranks alike. A tensor without a history, in the first
// step, is scaled by its own amax. With tensor-wise ("current") scaling all are, always.
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
  bool weight_gradients = true;           // else the gradient of a weight is computed from inputs in bf16
  // Delayed scaling:
  int64_t margin = 0;
  int64_t history = 1;      // steps that are remembered
  bool most_recent = true;  // amax is the last step's; else the largest of the history
};

/// A matrix [R, C] on its way to a product. Where FP8 can be cast in the pass that computes it, it never exists in the
/// model's dtype. One of both is called, once.
struct Producer {
  std::function<at::Tensor()> plain;
  std::function<Fp8Matrix(const Fp8Cast& cast)> in_fp8;

  Producer(std::function<at::Tensor()> plain, std::function<Fp8Matrix(const Fp8Cast&)> in_fp8)
      : plain(std::move(plain)), in_fp8(std::move(in_fp8)) {}
  /// What exists already.
  Producer(const at::Tensor& x)
      : plain([x] { return x; }),
        in_fp8([x](const Fp8Cast& cast) { return cast_to_fp8(x.contiguous(), cast); }) {}
};

class Fp8Scaling {
 public:
  enum class Role : uint8_t { input, weight, output_gradient };
  static constexpr int64_t roles = 3;

  Fp8Scaling(const Fp8Options& options, at::Device device) : options_(options), device_(device) {}
  const Fp8Options& options() const { return options_; }

  /// A linear layer by the name of its weight; its number. All are added before the first is used.
  int64_t add_layer(std::string weight);
  /// By number.
  const std::vector<std::string>& layers() const { return layers_; }

  struct Matrix {
    int64_t layer = 0;
    Role role = Role::input;
  };
  struct Wanted {
    bool rows = true;
    bool columns = true;
    bool recorded = true;  // enters the history
  };
  /// x in FP8: in the pass that computes it if the scale is known by then.
  Fp8Matrix cast(const Producer& x, const Matrix& matrix, const Wanted& wanted);

  /// After the last backward of a step and the optimizer's update: the largest magnitudes of all `ranks` give new
  /// scales. Without a magnitude above zero, or with one that is not finite, a scale stays.
  void update(const Group& ranks);
  /// Changes when weights do: what was cast before is void.
  int64_t step() const { return step_; }
  void weights_changed() { step_ += 1; }

  /// What a training needs to go on exactly, as tensors of each layer: scales [3] and amaxes [3, history], newest
  /// first. Nothing with tensor-wise scaling.
  struct State {
    std::string name;  // "fp8_scale.<weight>", "fp8_amax_history.<weight>"
    std::vector<int64_t> shape;
    at::Tensor values;
  };
  std::vector<State> state();
  /// The state was written from outside, with the weights.
  void restored();

 private:
  void prepare();
  Fp8Format format(Role role) const {
    return role == Role::output_gradient ? options_.gradients : Fp8Format::e4m3;
  }

  Fp8Options options_;
  at::Device device_;
  std::vector<std::string> layers_;
  int64_t step_ = 0;
  bool has_history_ = false;
  // By layer and role, fp32.
  at::Tensor largest_;
  at::Tensor scales_;
  at::Tensor inverses_;
  at::Tensor amaxes_;     // of the step under way
  at::Tensor histories_;  // [.., history]
};

}  // namespace teratron
