// Dropout whose mask depends only on (seed, tensor id, global element index), see base/philox.h: it is
// independent of the parallel layout, and recomputed instead of stored. Element e is kept if uniform word of
// e >= p * 2^32, and then scaled by 1 / (1 - p).
//
// x [..., n] contiguous is viewed as T rows; f32, bf16, f16, f64, arithmetic in f32 (f64). CPU and CUDA with
// identical masks; asynchronous on the current CUDA stream. p = 0 is the identity; p = 1 returns 0.
// Measurements: docs/notes/pointwise.md.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/base/philox.h"

namespace teratron {

/// Position of the local rows and columns in the global tensor [rows, columns]. Local element (t, c) has the
/// index
///   row(t) * columns + first_column + c,  with row(t) = rows[t] if defined, else first_row + t.
/// `rows` expresses any partition: the row of token s of sample b (numbered over the whole training) is
/// b * sequence_length + s on whichever rank holds it.
struct GlobalRows {
  at::Tensor rows;           // int64 [T] on x's device; may be undefined
  int64_t first_row = 0;     // used if rows is undefined
  int64_t columns = 0;       // global row length; 0 = the local one
  int64_t first_column = 0;  // global column of local column 0
};

struct Dropout {
  double p = 0;
  RandomKey key;
  GlobalRows where;
};

/// y = mask * x / (1 - p). The backward is the same call on dy.
at::Tensor dropout(const at::Tensor& x, const Dropout& dropout);

/// y = residual + dropout(x + bias); bias [n] and residual may be undefined. Backward: dresidual = dy,
/// dx = dropout(dy), dbias = column_sum(dx).
at::Tensor bias_dropout_add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                            const Dropout& dropout);

}  // namespace teratron
