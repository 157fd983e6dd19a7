// Dropout whose mask depends only on the seed, the site in the model and the global index of the element. It
// is therefore the same for every parallel layout and is regenerated in backward and under recomputation.
#pragma once

#include <cstdint>
#include <memory>

#include "teratron/nn/parameter.h"

namespace teratron {

/// Identifies one dropout of one micro-batch.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t site = 0;  // dropouts are numbered through the whole model
  /// [B] i64: sample numbers, counted through the run. A tensor, so that a replayed CUDA graph drops other
  /// elements. Undefined without dropout.
  at::Tensor sample_ids_B;
};

/// Where the local rows of activations [S, B, ..] are in their samples: any part of them, in any order.
struct SequenceRows {
  /// i64 [S], or [S, B] if they differ between samples: index of each local row in its sample's whole
  /// sequence.
  at::Tensor rows_S;
  int64_t total = 0;      // length of the whole sequence
  bool of_run = false;    // rows_S are counted through the samples of the run, each of `total` rows
  at::Tensor all_S = {};  // rows_S of all sequence shards; undefined: not known
};

/// Ids [S * B] of local rows, counted through the samples of the run.
at::Tensor row_ids(const SequenceRows& rows, const at::Tensor& sample_ids_B);

/// Global row ids, computed once per micro-batch and shared by its dropouts.
struct DropoutRowIds {
  at::Tensor hidden;  // of activations [S, B]
  at::Tensor scores;  // of attention scores [B, N, S]
};

struct DropoutArgs {
  double rate = 0.0;  // 0: no dropout
  DropoutKey key;
  SequenceRows rows;                                 // unused without dropout
  std::shared_ptr<DropoutRowIds> row_ids = nullptr;  // null: not shared
  bool training = false;                             // adapters drop inputs (nn/lora.h), whatever `rate` is
};

/// The residual branch to which a layer's output is added after dropout.
struct ResidualDropout {
  at::Tensor residual_SBH;  // undefined: zeros
  DropoutArgs dropout;
};

/// residual + dropout(x + bias): x [S, B, H], bias [H] may be null, the residual undefined. The result has
/// the residual's dtype, which may be wider than x's.
at::Tensor bias_dropout_add(const at::Tensor& x_SBH, Parameter* bias, const at::Tensor& residual_SBH,
                            const DropoutArgs& args);

}  // namespace teratron
