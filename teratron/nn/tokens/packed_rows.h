// Samples of different lengths as one row [T, 1], one after the other: all that is computed per token runs on
// T tokens instead of the S * B of rows [S, B] with padding at their ends.
//
// Each sample is a segment, and so is what is left of the padding (to round T). Attention stays within
// segments. Where it stores scores, it runs on rows with padding: scores of T x T tokens would be those of
// every sample with every other.
#pragma once

#include "teratron/nn/tokens/segments.h"

namespace teratron {

struct PackedRows {
  at::Tensor tokens_T;  // i64: place of each token in [S, B], s * B + b
  at::Tensor starts_B;  // i64: first token of each sample
  Segments padded;      // of the rows [S, B]: the samples, and each token of padding
  int64_t length = 0;   // S

  bool defined() const { return tokens_T.defined(); }
};

/// [T, 1, ...] as [S, B, ...], zeros in place of the padding that was removed. Differentiable, as its
/// inverse.
at::Tensor with_padding(const at::Tensor& x_T1, const PackedRows& rows);
at::Tensor without_padding(const at::Tensor& x_SB, const PackedRows& rows);

}  // namespace teratron
