// Tensor-parallel linear layers (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022).
//
//   ColumnLinear   y = x W^T + b   W cut along its rows: every rank gives its columns of y
//   RowLinear      y = x W^T + b   W cut along its columns: partial results are summed, then b is added
//
// Activations are [S, B, features]. With sequence parallelism the region outside a column/row pair holds a
// part of the sequence: Column gathers it first, Row scatters its result.
#pragma once

#include <functional>

#include "teratron/nn/parallel_matmul.h"

namespace teratron {

/// The ranks a layer is cut over.
struct TensorParallel {
  Group group;
  bool sequence_parallel = false;
};

struct LinearOptions {
  int64_t in = 0;   // global
  int64_t out = 0;  // global
  bool bias = true;
  Init init;
  std::vector<int64_t> segments = {};  // Column only: pieces of `out` that are cut one by one (gate|up)
};

struct Residual;

/// Activations [S, B, H] whose last bias has no gradient yet: the sum of theirs over the tokens. Backward of whoever takes them
/// writes that gradient, sums it in the same pass and adds it to the bias'.
struct Stream {
  at::Tensor x_SBH;
  Parameter* bias = nullptr;  // null: every bias has its gradient
};
/// x for whoever does not do that.
at::Tensor settled(const Stream& stream);

class ColumnLinear {
 public:
  ColumnLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel);
  /// x [S, B, in] (S local under sequence parallelism) -> [S, B, out / tp], S whole; queries and keys turned, if there is a
  /// turn, which backward does not undo.
  Stream forward(const at::Tensor& x_SBI, const QkvTurn* turn = nullptr);
  /// The bias [out / tp], null when there is none.
  Parameter* bias() const { return bias_; }
  LinearCore core() const;

 private:
  TensorParallel parallel_;
  std::unique_ptr<MatMul> product_;
  Parameter* bias_ = nullptr;
};

class RowLinear {
 public:
  RowLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel);
  /// residual + dropout(y + b) for x [S, B, in / tp], S whole; the result's S is local under sequence parallelism. By the
  /// GEMM alone where that can do it.
  Stream forward_onto(const Residual& residual, const at::Tensor& x_SBI);

  /// What is added to x W^T.
  struct Addends {
    Parameter* bias;                         // may be null
    std::optional<at::Tensor> residual_SBO;  // comes with the bias
  };
  using Summed = std::function<at::Tensor(const Addends& addends)>;
  /// The same for an autograd function that ends with this layer: `summed` computes core().output [S, B, out] in `type`.
  Stream forward_onto(const Residual& residual, at::ScalarType type, const Summed& summed);
  LinearCore core() const;

 private:
  TensorParallel parallel_;
  std::unique_ptr<MatMul> product_;
  Parameter* bias_ = nullptr;
};

/// y = x W^T with the communication of the layer's region.
at::Tensor linear(const at::Tensor& x, const LinearCore& core);

}  // namespace teratron
