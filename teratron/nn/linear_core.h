// What a linear layer does within an autograd function: its three products with the communication of its input. Linear
// (linear.h) is such a function, and so is the whole MLP (mlp.h).
#pragma once

#include "teratron/comm/mesh.h"
#include "teratron/nn/matmul.h"

namespace teratron {

/// What Column does on its way in, and undoes in backward.
enum class InputRegion : uint8_t {
  local,     // x is used as it is; dx is not reduced
  copied,    // x is replicated; dx is all-reduced under the weight gradient's GEMM
  gathered,  // x is a part of the sequence; it is gathered (in backward again, under dx's GEMM), and dx is
             // reduce-scattered under the weight gradient's
};

/// x [.., features] as [T, features].
at::Tensor as_rows(const at::Tensor& x);
/// rows [T, features] with the leading dimensions of `shape`.
at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape);

/// Products and group outlive the graph.
struct LinearCore {
  MatMul* product;
  InputRegion region;
  const Group* group;

  /// What backward needs of x: as it came if it was gathered (it is gathered once more), else as dW's product takes it.
  struct Kept {
    at::Tensor x;
    at::Tensor inverse;  // of an FP8 scale, else undefined
  };
  struct Input {
    MatMul::Operand operand;
    std::vector<int64_t> shape;  // of x when it is whole
    Kept kept;
  };
  /// x [S, B, in] on its way to product->forward; `training`: backward will come.
  Input input(const at::Tensor& x_SBI, bool training) const;
  /// Adds dW to the weight's gradient; returns dx (undefined unless wanted) with the leading dimensions of `shape`, those
  /// of dy.
  at::Tensor backward(const Kept& x, const MatMul::Operand& dy_TO, at::IntArrayRef shape,
                      bool wants_dx) const;
};

}  // namespace teratron
