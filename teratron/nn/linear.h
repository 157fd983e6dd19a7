// Tensor-parallel linear layers (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022).
//
//   ColumnLinear   y = x W^T + b   W sharded along its rows: each rank computes its columns of y
//   RowLinear      y = x W^T + b   W sharded along its columns: partial results are summed, then b is added
//
// Activations are [S, B, features]. With sequence parallelism, activations outside a column/row pair are
// sequence shards: Column gathers its input, Row scatters its result.
#pragma once

#include "teratron/nn/parallel_matmul.h"

namespace teratron {

struct LinearOptions {
  int64_t in = 0;   // global
  int64_t out = 0;  // global
  bool bias = true;
  Init init;
  std::vector<int64_t> segments = {};  // Column only: pieces of `out` that are sharded separately (gate|up)
  std::vector<LinearPart> parts = {};  // Column only: projections that can have separate adapters
  /// Column only: `out` is of such groups. If there are fewer groups than ranks, their shared rows are on
  /// every rank that has divided rows of them, and the gradients of these ranks are summed after backward.
  std::optional<GroupRows> group = {};
  /// Column only: every rank has the whole weight and multiplies its rows of x, which stay where they are.
  bool replicated = false;
};

class Lora;
struct DropoutArgs;
struct ResidualDropout;

/// norm(x) of x [S, B, H]; what reads it may normalize x itself.
class Normed {
 public:
  /// Implicit: x is normalized already.
  Normed(at::Tensor normed_SBH) : x_SBH_(std::move(normed_SBH)) {}  // NOLINT
  Normed(at::Tensor x_SBH, const NormParameters& parameters, const NormOptions& options)
      : x_SBH_(std::move(x_SBH)), parameters_(parameters), options_(options) {}
  at::Tensor tensor() const;
  at::IntArrayRef sizes() const { return x_SBH_.sizes(); }
  at::ScalarType scalar_type() const { return x_SBH_.scalar_type(); }
  /// What the GEMM with `w` normalizes; nullopt: it multiplies tensor().
  std::optional<NormedRows> rows_for(const at::Tensor& w) const;

 private:
  at::Tensor x_SBH_;
  NormParameters parameters_;  // the weight is undefined if x is normalized already
  NormOptions options_;
};

/// Hidden states [S, B, H] and the bias added last, whose gradient is still due: the consumer's backward must
/// compute it (dy summed over tokens) and accumulate it, in the same pass as its own gradient.
struct Hidden {
  at::Tensor x_SBH;
  Parameter* bias = nullptr;  // null: no gradient is due
};
/// Returns x; its backward accumulates the bias gradient.
at::Tensor apply_bias_grad(const Hidden& hidden);

/// An adapter beside a weight.
struct Adapter {
  const Lora* lora = nullptr;            // null: none
  const DropoutArgs* dropout = nullptr;  // where it drops inputs; null: it does not
};

/// What the GEMM adds to x W^T; RoPE is applied last and excludes a residual.
struct LinearEpilogue {
  Parameter* bias = nullptr;  // its gradient is left to the consumer
  std::optional<at::Tensor> residual_SBO = {};
  const QkvRope* rope = nullptr;  // backward does not undo it
  Adapter adapter = {};
};
/// x W^T plus the epilogue, with the communication of `matmul`. Differentiable.
at::Tensor linear(const at::Tensor& x_SBI, const ParallelMatmul& matmul, const LinearEpilogue& epilogue = {});

class ColumnLinear {
 public:
  ColumnLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel);
  /// x [S, B, in] (S local under sequence parallelism) -> [S, B, the weight's rows on this rank] with S
  /// global: out / tp without shared rows. `rope`, if not null, rotates queries and keys; backward does not
  /// undo it. `dropout`: where an adapter drops inputs; null: it does not.
  Hidden forward(const at::Tensor& x_SBI, const QkvRope* rope = nullptr,
                 const DropoutArgs* dropout = nullptr);
  /// forward(norm(x)). Without gradients.
  at::Tensor forward_normed(const Normed& x_SBI);
  /// What the GEMM normalizes; nullopt: forward() needs the tensor.
  std::optional<NormedRows> normed_rows(const Normed& x_SBI) const;
  const Lora* adapter() const { return lora_.get(); }
  const ParallelMatmul& matmul() const { return matmul_; }
  /// [out / tp], null if there is none.
  Parameter* bias() const { return bias_; }

 private:
  ParallelMatmul matmul_;
  Parameter* bias_ = nullptr;
  std::shared_ptr<Lora> lora_;  // null: no adapter
};

class RowLinear {
 public:
  RowLinear(const Scope& scope, const LinearOptions& options, const TensorParallel& parallel);
  /// residual + dropout(y + b) for x [S, B, in / tp] with S global; the result's S is local under sequence
  /// parallelism. A default ResidualDropout adds nothing.
  Hidden forward_add_residual(const at::Tensor& x_SBI, const ResidualDropout& residual);

  // The two halves of forward_add_residual(), for an autograd function that ends with this layer (mlp.cpp).
  /// Bias and residual if the GEMM can add them: on one rank, without dropout and for x of the residual's
  /// dtype. Else empty.
  LinearEpilogue fused_epilogue(const ResidualDropout& residual, at::ScalarType dtype) const;
  /// Adds to y what `epilogue` did not.
  Hidden add_unfused(const at::Tensor& y_SBO, const LinearEpilogue& epilogue,
                     const ResidualDropout& residual) const;
  const ParallelMatmul& matmul() const { return matmul_; }
  const Lora* adapter() const { return lora_.get(); }

 private:
  ParallelMatmul matmul_;
  Parameter* bias_ = nullptr;
  std::shared_ptr<Lora> lora_;  // null: no adapter
};

}  // namespace teratron
