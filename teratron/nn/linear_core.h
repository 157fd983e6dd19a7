// What a linear layer does within an autograd function: its three products with the communication of its input. Linear
// (linear.h) is such a function, and so is the whole MLP (mlp.h).
#pragma once

#include "teratron/comm/mesh.h"
#include "teratron/nn/matmul.h"

namespace teratron {

/// What Column does on its way in, and undoes in backward.
enum class InputRegion : uint8_t {
  local,   // x is used as it is; dx is not reduced
  copied,  // x is replicated; dx is all-reduced under the weight gradient's GEMM
  gathered,  // x is a part of the sequence; it is gathered (in backward again, under what comes before the weight
             // gradient's GEMM), and dx is reduce-scattered under that
};

/// x [.., features] as [T, features].
at::Tensor as_rows(const at::Tensor& x);
/// rows [T, features] with the leading dimensions of `shape`.
at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape);

/// A tensor that may still be on its way between the ranks; not to be read before work.wait().
struct Moving {
  at::Tensor tensor;
  Work work;
};

/// Products and group outlive the graph. What is gathered lives no longer than a forward or a backward: that is how
/// windows want it (Communicator::gather_output).
struct LinearCore {
  MatMul* product;
  InputRegion region;
  const Group* group;

  /// What backward needs of x: as it came if it was gathered (it is gathered once more), else as dW's product takes it.
  struct Kept {
    at::Tensor x;
    at::Tensor inverse;  // of an FP8 scale, else undefined
  };
  struct Output {
    at::Tensor y_SBO;
    Kept kept;
  };
  /// From x [S, B, in], or this rank's part of it; `training`: backward will come.
  Output forward(const at::Tensor& x_SBI, const MatMul::Addends& addends, bool training) const;
  /// The input of dW's product, which may be on its way once more.
  struct Returning {
    Moving x;
    at::Tensor inverse;
  };
  /// Backward's first step, taken early: whatever comes before dW's product hides the way of x.
  Returning restore(const Kept& x) const;
  /// Adds dW to the weight's gradient; returns dx (undefined unless wanted) with the leading dimensions of `shape`, those
  /// of dy.
  at::Tensor backward(Returning x, const MatMul::Operand& dy_TO, at::IntArrayRef shape, bool wants_dx) const;

 private:
  /// y of an input that is on its way.
  at::Tensor forward_own_first(Moving& x, const at::Tensor& bias_O) const;
};

}  // namespace teratron
