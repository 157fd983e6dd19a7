// The GEMMs of a linear layer with the tensor-parallel communication around them. For use inside autograd
// functions: a linear layer (linear.h), the MLP (mlp.h), the output layer with its loss
// (vocab_parallel_cross_entropy.h).
#pragma once

#include <c10/util/FunctionRef.h>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/matmul.h"

namespace teratron {

/// The ranks a layer is sharded over.
struct TensorParallel {
  Group group;
  bool sequence_parallel = false;

  /// Axes over which gradients of a replicated parameter applied to sequence shards are summed.
  AxisSet grad_sum() const { return sequence_parallel ? AxisSet(Axis::tp) : AxisSet(); }
  /// The rows of x [S, ..] outside the tensor-parallel regions: this rank's sequence shard, else x itself.
  at::Tensor sequence_shard(const at::Tensor& x) const;
};

/// Communication of a linear layer in forward; backward runs the adjoint.
enum class TpComm : uint8_t {
  none,
  copy,            // column: x is replicated; dx is all-reduced while dW is computed
  all_gather,      // column: sequence shards of x are gathered, in backward again; dx is reduce-scattered
                   // while dW is computed
  all_reduce,      // row: y is all-reduced; dy is replicated
  reduce_scatter,  // row: y is reduce-scattered to sequence shards while it is computed; dy is gathered
};

/// x [.., features] as [T, features].
at::Tensor as_rows(const at::Tensor& x);
/// rows [T, features] with the leading dimensions of `shape`.
at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape);
/// Rows [begin, end) of x, a view; x itself if these are all, undefined if x is.
at::Tensor slice_rows(const at::Tensor& x, int64_t begin, int64_t end);
/// For these rows of the sum.
inline AddedProduct slice_rows(const AddedProduct& added, int64_t begin, int64_t end) {
  return {slice_rows(added.x, begin, end), added.w};
}

/// A tensor [S, .., features] that may still be in flight: read it after work.wait(). Only this rank's shard
/// of an all-gather may be read before.
struct AsyncTensor {
  at::Tensor tensor;
  Work work = {};
  const Group* gathered_over = nullptr;  // null: not gathered

  /// This rank's shard; all of a tensor that is not gathered.
  at::Tensor local() const;
  /// compute(begin, end) for all rows of as_rows(tensor); this rank's shard first, to overlap the all-gather.
  void overlap_local_first(c10::function_ref<void(int64_t begin, int64_t end)> compute);
};

/// All-gathers `shard` along dimension 0, by copy engines where GPUs reach each other. `group` must outlive
/// the result, which must be freed in the same order on all ranks (Communicator::alloc_symmetric).
AsyncTensor start_all_gather(const at::Tensor& shard, const Group& group);

/// Must outlive the graph. Gathered tensors live no longer than one forward or backward, as symmetric memory
/// requires (Communicator::alloc_symmetric).
class ParallelMatmul {
 public:
  /// For a weight sharded along its rows or along its columns; `fp8` may be null.
  static ParallelMatmul column(Parameter& weight, Fp8Scaling* fp8, const TensorParallel& parallel);
  static ParallelMatmul row(Parameter& weight, Fp8Scaling* fp8, const TensorParallel& parallel);

  Matmul& product() const { return *product_; }
  bool is_frozen() const { return !weight().options.trainable; }
  Parameter& weight() const { return product_->weight(); }
  const Group& group() const { return group_; }
  /// Whether forward multiplies the rows of x without gathering or casting them.
  bool reads_rows_as_they_are() const { return comm_ != TpComm::all_gather && !product_->quantized(); }

  /// x for backward: the local shard if it was all-gathered (re-gathered in backward), else the dW operand.
  /// Undefined if the weight is frozen.
  struct SavedInput {
    at::Tensor x;
    at::Tensor scale_inv = {};
    Work gather = {};
  };
  struct Output {
    at::Tensor y_SBO;
    SavedInput saved;
  };
  /// From x [S, B, in] or this rank's shard of it; y as TpComm says. `training`: backward will run. The added
  /// product has y's rows and is complete on every rank.
  Output forward(const at::Tensor& x_SBI, const Matmul::Epilogue& epilogue, bool training) const;
  /// Forward without an all-gather, from rows with the leading dimensions of `shape`.
  Output forward(const LazyTensor& x_TI, at::IntArrayRef shape, const Matmul::Epilogue& epilogue,
                 bool training) const;

  // Backward first starts the gathers, dy's before x's because it is used first, then computes.
  AsyncTensor gather_input(const at::Tensor& x_SBI) const;
  AsyncTensor gather_output_grad(const at::Tensor& dy_SBO) const;
  SavedInput gather_again(SavedInput saved) const;
  /// Accumulates dW into the weight's main_grad, unless it is frozen, and returns dx as TpComm says;
  /// undefined unless `needs_dx`.
  at::Tensor backward(SavedInput x, AsyncTensor dy_SBO, bool needs_dx) const;
  /// Backward from the operand of dy, whose leading dimensions are those of `shape`.
  at::Tensor backward(SavedInput x, const Matmul::Operand& dy_TO, at::IntArrayRef shape, bool needs_dx) const;

 private:
  ParallelMatmul(Parameter& weight, Fp8Scaling* fp8, TpComm comm, const Group& group);
  at::Tensor summed_over_ranks(const Matmul::Operand& x_TI, at::IntArrayRef shape) const;
  at::Tensor reduce_scatter(const Matmul::Operand& x_TI, at::IntArrayRef shape) const;
  AsyncTensor start_reduction(const at::Tensor& dx) const;
  void accumulate_weight_grad(SavedInput x, const Matmul::Operand& dy_TO) const;

  std::unique_ptr<Matmul> product_;
  TpComm comm_;
  Group group_;
};

}  // namespace teratron
