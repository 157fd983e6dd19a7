// Operators of a transformer's layers (transformer_layer.h, layer_stack.h), without cross attention. The
// bytes are those of the tensors that nn's autograd functions save, and of those alive next to them.
#pragma once

#include "teratron/models/operators.h"
#include "teratron/models/transformer/config.h"

namespace teratron {

inline double as_real(int64_t n) {
  return static_cast<double>(n);
}

/// Sizes that the operators of a rank share.
struct RankSizes {
  RankSizes(const TransformerConfig& config, const RankBatch& batch);

  double samples = 0, queries = 0, keys = 0;  // of a micro-batch on this rank
  double tokens = 0;                          // inside tensor-parallel regions
  double local_tokens = 0;                    // outside: a shard under sequence parallelism
  double element = 0;                         // bytes of an activation
  double statistic = 0;                       // bytes of a statistic: fp32, or fp64 of an fp64 model
  double shards = 1;                          // of weights: the tensor-parallel size
  bool gathers = false;                       // inputs of column layers are gathered, in backward again
  bool fp8_weight_gradients = true;
  /// Bytes of hidden states between layers, and between the operators of a layer.
  double residual_stream = 0, hidden = 0;
  double gemm_workspace = 0;  // bytes
  /// Bytes that the input [tokens, width] of a column or row layer leaves for the weight gradient.
  double column_input(double width, bool fp8) const;
  double row_input(double width, bool fp8) const;
};

/// y [rows, out] = x [rows, in] W^T: FLOPs and bytes.
Operator gemm_operator(std::string name, const RankSizes& sizes, double in, double out);
/// A norm of hidden states, whose input is saved.
Operator norm_operator(std::string name, const TransformerConfig& config, const RankSizes& sizes);

/// Word embeddings, with what is added to them in place, and their dropout.
Operator embedding_operator(const TransformerConfig& config, const RankSizes& sizes);

struct OutputLayerOptions {
  double width = 0.0;
  double columns = 0.0;  // of all ranks
  double chunks = 1.0;   // of the tokens; the operator is that of one
  bool fp8 = false;
};
/// The output layer with its loss.
Operator output_layer_operator(const RankBatch& batch, const RankSizes& sizes,
                               const OutputLayerOptions& options);

/// Layers [first, first + count) of the stack on a stage, in order.
std::vector<Operator> stack_operators(const std::string& prefix, const TransformerConfig& config,
                                      const RankBatch& batch, int64_t first, int64_t count);

}  // namespace teratron
