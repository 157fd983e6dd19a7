// Dropout whose mask depends on the seed, the place in the model and the global index of the element alone,
// so that it is the same for every layout and can be drawn again in backward and under recomputation.
#pragma once

#include <cstdint>
#include <memory>

#include "teratron/nn/linear.h"

namespace teratron {

/// What makes one dropout of one micro-batch different from all others.
struct DropoutKey {
  uint64_t seed = 0;
  /// Number of the place: layers and sites are counted through the whole model.
  uint64_t site = 0;
  /// [B] i64: numbers of the micro-batch's samples in the run. Data, so that what is captured once (a CUDA graph) drops
  /// other elements each time. Undefined where nothing is dropped.
  at::Tensor samples_B;
};

/// Where a tensor [S, B, H] lies in the global activation: the position of its first row along S, of how
/// many.
struct SequencePart {
  int64_t first = 0;
  int64_t whole = 0;
};

/// The part of the sequence this rank holds outside the tensor-parallel regions: all of it, or its share
/// under sequence parallelism. `local_length` is the number of rows at hand.
SequencePart local_sequence(int64_t local_length, const TensorParallel& parallel);

/// Row numbers that the dropouts of one micro-batch share: whoever needs them first computes them.
struct DropoutRows {
  at::Tensor hidden;  // of activations [S, B]
  at::Tensor scores;  // of attention scores [B, N, S]
};

struct DropoutPlan {
  double rate = 0.0;  // 0 leaves the dropout out
  DropoutKey key;
  SequencePart part;
  std::shared_ptr<DropoutRows> rows = nullptr;  // of the micro-batch; null: of this dropout alone
};

/// The residual stream that a layer's output is added to, and the dropout before that.
struct Residual {
  at::Tensor stream_SBH;
  DropoutPlan dropout;
};

/// residual + dropout(x + bias): x [S, B, H]; bias [H] may be null, the residual undefined. The result has the
/// residual's type, which may be wider than x's.
at::Tensor bias_dropout_add(const at::Tensor& x_SBH, Parameter* bias, const at::Tensor& residual_SBH,
                            const DropoutPlan& plan);

}  // namespace teratron
