// Building blocks of the vocabulary-parallel cross entropy: each rank holds the logits of a range of columns.
// No f32 copy of the logits is made: one pass computes the statistics, one overwrites the logits with their
// gradient.
//
//   loss[t] = log(sum_j exp(z[t,j])) - z[t, target]
//
// Combining the ranks' statistics (exact; nn does it; the identity on one rank):
//   M = all_reduce_max(max);  S = all_reduce_sum(sum_exp * exp(max - M));  Z = all_reduce_sum(target_logit)
//   loss = log(S) + M - Z
//
// Shapes: logits [..., v] contiguous, T rows; targets int64 [T]. Dtypes of the logits: f32, bf16, f16, f64;
// of the statistics: f32 (f64 for f64). Asynchronous on the current CUDA stream. Bitwise reproducible.
// Measurements: docs/notes/cross_entropy.md.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/fp8/fp8.h"

namespace teratron {

/// The vocabulary range of the local logits. Columns from `columns` on are padding: excluded from the
/// softmax, and with zero gradient. columns = 0 is valid (a rank that holds only padding).
struct VocabRange {
  int64_t first = 0;    // vocabulary id of local column 0
  int64_t columns = 0;  // logical local columns, <= v
};

struct CrossEntropyStatistics {
  at::Tensor max;           // [T] local row maximum; -inf if columns = 0
  at::Tensor sum_exp;       // [T] sum of exp(z - local max); 0 if columns = 0
  at::Tensor target_logit;  // [T] z[t, target]; 0 if the target is not a logical column of this rank
};

/// One pass over the logits (on the CPU two over each row, which is in cache the second time).
CrossEntropyStatistics cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets,
                                                const VocabRange& range);

/// The combined statistics, and the gradient of each row's loss (0 for masked tokens).
struct CrossEntropySaved {
  at::Tensor max;      // [T] M
  at::Tensor sum_exp;  // [T] S
  at::Tensor targets;  // int64 [T]
  at::Tensor scale;    // [T], in the dtype of the statistics
};

/// logits[t, j] <- (exp(z - M) / S - [j = target]) * scale[t], in place, in the logits' dtype.
void cross_entropy_gradient_(const at::Tensor& logits, const CrossEntropySaved& saved,
                             const VocabRange& range);

/// Whether the next function takes one pass: bf16 on GPUs of compute capability 9.0 or higher, v a multiple
/// of 8 and at most 450,560.
bool has_cross_entropy_with_gradient(const at::Tensor& logits);
/// Returns the losses [T] of whole rows of logits, in the dtype of the statistics, and overwrites logits[t,
/// j] <- exp(z - M) / S - [j = target]: one read and one write, instead of the two reads of statistics and
/// gradient, which are the fallback.
at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        const VocabRange& range);
/// Applies the scales [T], known only later, to that gradient: multiplies row t by scale[t] / c in place
/// unless that is 1, where c, the result [1], is the scale of largest magnitude. gradient * c is the gradient
/// of the scaled losses. Rows of scale 0 become zero, NaN or not. In most trainings all scales are c or 0, so
/// nothing is rounded twice.
at::Tensor cross_entropy_scale_(const at::Tensor& gradient, const at::Tensor& scale);

/// The gradient of cross_entropy_gradient_ for logits [T, v], rounded to the logits' dtype and then cast to
/// FP8 (fp8.h), bitwise. bf16 and f16 on a GPU take one pass, which does not modify the logits; otherwise
/// they are overwritten.
Fp8Matrix cross_entropy_gradient_fp8(const at::Tensor& logits, const CrossEntropySaved& saved,
                                     const VocabRange& range, const Fp8Cast& cast);

}  // namespace teratron
