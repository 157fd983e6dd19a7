// What a linear layer does within an autograd function: its three products with the communication around them. Linear
// (linear.h) is such a function, and so is the whole MLP (mlp.h).
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/matmul.h"

namespace teratron {

/// What lies on the other side of a layer, and so what moves on its way in and out. In backward the way is undone.
enum class ParallelRegion : uint8_t {
  local,   // nothing moves
  copied,  // Column: x is replicated; dx is all-reduced under the weight gradient's GEMM
  gathered,  // Column: x is a part of the sequence and is gathered, in backward again; dx is reduce-scattered under the
             // weight gradient's GEMM
  summed,     // Row: y is all-reduced; dy is replicated
  scattered,  // Row: y is reduce-scattered to parts of the sequence while it is computed; dy is gathered
};

/// x [.., features] as [T, features].
at::Tensor as_rows(const at::Tensor& x);
/// rows [T, features] with the leading dimensions of `shape`.
at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape);

/// A tensor that may still be on its way between the ranks; not to be read before work.wait(), but for this rank's own
/// part of what is gathered.
struct Moving {
  at::Tensor tensor;
  Work work;
};

/// Products and group outlive the graph. What is gathered lives no longer than a forward or a backward: that is how
/// windows want it (Communicator::gather_output). A rank's own rows are multiplied while those of others are on their way.
struct LinearCore {
  MatMul* product;
  ParallelRegion region;
  const Group* group;

  /// Whether parts of dy come from other ranks.
  bool gathers_gradient() const { return is(ParallelRegion::scattered); }

  /// What backward needs of x: as it came if it was gathered (it is gathered once more), else as dW's product takes it.
  struct Kept {
    at::Tensor x;
    at::Tensor inverse;  // of an FP8 scale, else undefined
  };
  struct Output {
    at::Tensor y_SBO;
    Kept kept;
  };
  /// From x [S, B, in], or this rank's part of it; `training`: backward will come. y as the region has it.
  Output forward(const at::Tensor& x_SBI, const MatMul::Addends& addends, bool training) const;
  struct ActivatedOutput {
    Activated hidden;  // [T, width]
    Kept kept;
    std::vector<int64_t> shape;  // leading dimensions of y
  };
  /// The same with an activation that the product takes; its argument if backward will come. For columns.
  ActivatedOutput forward_activated(const at::Tensor& x_SBI, const at::Tensor& bias_O, Activation activation,
                                    bool training) const;
  /// The same from what the product takes; `shape`: leading dimensions of x. For rows (local, summed, scattered).
  at::Tensor output(const MatMul::Operand& x_TI, const MatMul::Addends& addends, at::IntArrayRef shape) const;

  // Backward takes three steps. The first two only start what must move, dy first: it is wanted first, and whatever comes
  // before dW's product hides the way of x.

  /// dy with the whole sequence.
  Moving output_gradient(const at::Tensor& dy_SBO) const;
  /// The gradient of z, where the layer's input is activation(z), and its sum, if wanted. For rows. Waits for dy.
  SummedGradient argument_gradient(Moving& dy_SBO, const at::Tensor& z, Activation activation,
                                   const WantedSum& sum) const;
  struct Returning {
    Moving x;
    at::Tensor inverse;
  };
  /// The input of dW's product.
  Returning restore(const Kept& x) const;
  /// Adds dW to the weight's gradient; returns dx (undefined unless wanted), as the region has it.
  at::Tensor backward(Returning x, Moving dy_SBO, bool wants_dx) const;
  /// The same for a dy that is there as the products take it; `shape`: its leading dimensions.
  at::Tensor backward(Returning x, const MatMul::Operand& dy_TO, at::IntArrayRef shape, bool wants_dx) const;

 private:
  bool is(ParallelRegion wanted) const { return region == wanted && group->size > 1; }
  at::Tensor forward_own_first(Moving& x, const at::Tensor& bias_O) const;
  at::Tensor scattered_output(const MatMul::Operand& x_TI, at::IntArrayRef shape) const;
  at::Tensor input_gradient_own_first(Moving& dy_SBO) const;
  Moving start_input_gradient(const at::Tensor& dx) const;
  void add_weight_gradient(Returning x, const MatMul::Operand& dy_TO) const;
};

}  // namespace teratron
