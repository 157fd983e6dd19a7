// Sizes of a rank's tensors for one micro-batch, which the costs of its layers (operator.h) share.
#pragma once

#include "teratron/base/dtype.h"
#include "teratron/nn/cost/operator.h"

namespace teratron {

struct BatchShape {
  int64_t samples = 0;
  int64_t sequence_length = 0;
  /// Sum of squared segment lengths; default samples * sequence_length^2.
  std::optional<double> squared_lengths = std::nullopt;
};

/// One micro-batch as a rank sees it.
struct RankBatch {
  BatchShape batch;  // of the micro-batch
  /// What cross attention attends to; nullopt: there is none.
  std::optional<BatchShape> memory = std::nullopt;
  bool segmented = false;  // attention stays within segments (documents)
  Dtype dtype = Dtype::bf16;
  bool fp8 = false;                  // GEMMs of the layers that the model selects
  bool fp8_weight_gradients = true;  // see Fp8Options
  bool gpu = true;                   // kernels of an H100, else of a CPU
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;
  int64_t context_parallel = 1;
  int64_t expert_parallel = 1;
  int64_t expert_tensor_parallel = 1;
};

/// Hidden states [S, B, width], which layers read and add to.
struct HiddenStates {
  int64_t width = 0;
  bool fp32_residual = false;  // the residual stream is fp32 for any dtype of the weights
  double dropout = 0.0;        // of what a layer adds
};

constexpr double id_bytes = 8.0;  // of a token, a row or a position

inline double as_real(int64_t n) {
  return static_cast<double>(n);
}

/// Bytes where nothing else is said.
struct RankSizes {
  RankSizes(const HiddenStates& states, const RankBatch& batch);

  HiddenStates states;
  RankBatch batch;
  double samples = 0, queries = 0, keys = 0;  // numbers, of a micro-batch on this rank
  double tokens = 0;                          // number inside tensor-parallel regions
  double local_tokens = 0;                    // number outside: a shard under sequence parallelism
  double element = 0;                         // of an activation
  double statistic = 0;                       // fp32, or fp64 of an fp64 model
  double shards = 1;                          // number, of weights: the tensor-parallel size
  bool gathers = false;                       // inputs of column layers are gathered, in backward again
  /// Hidden states between layers, and between the operators of a layer.
  double residual_stream = 0, hidden = 0;
  double gemm_workspace = 0;

  bool drops() const { return states.dropout > 0.0; }
  /// Hidden states of all tokens.
  double whole_hidden() const { return tokens * as_real(states.width) * element; }
  /// Bytes that are gathered.
  double gathered(double bytes) const { return gathers ? bytes : 0.0; }
  /// Sizes of the batch's memory.
  RankSizes of_memory() const;
};

}  // namespace teratron
