// Building blocks of the vocabulary-parallel cross entropy: each rank holds the logits of a range of columns.
// No f32 copy of the logits is ever made: one reading pass for the statistics, one pass that turns the logits
// into their gradient where they lie.
//
//   loss[t] = log(sum_j exp(z[t,j])) - z[t, target]
//
// How the ranks' statistics combine (exact, and what nn does; with one rank it is the identity):
//   M = all_reduce_max(max);  S = all_reduce_sum(sum_exp * exp(max - M));  Z = all_reduce_sum(target_logit)
//   loss = log(S) + M - Z
//
// Shapes: logits [..., v] contiguous, T rows; targets int64 [T]. Dtypes of the logits: f32, bf16, f16, f64;
// of the statistics: f32 (f64 for f64). Asynchronous on the current CUDA stream. Bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/fp8/fp8.h"

namespace teratron {

/// Which columns of the vocabulary the local logits are. Columns from `columns` on are padding: they take no
/// part in the softmax, and their gradient is zero. columns = 0 is legal (a rank that holds padding alone).
struct VocabRange {
  int64_t first = 0;    // vocabulary id of local column 0
  int64_t columns = 0;  // logical local columns, <= v
};

struct CrossEntropyStatistics {
  at::Tensor max;           // [T] local row maximum; -inf where columns = 0
  at::Tensor sum_exp;       // [T] sum of exp(z - local max); 0 where columns = 0
  at::Tensor target_logit;  // [T] z[t, target], 0 where the target is not a logical column of this rank
};

/// One pass over the logits (on the CPU two over each row, which lies in the cache the second time).
CrossEntropyStatistics cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets,
                                                const VocabRange& range);

/// The combined statistics and the gradient that arrives at each row's loss (0 for masked tokens).
struct CrossEntropySaved {
  at::Tensor max;      // [T] M
  at::Tensor sum_exp;  // [T] S
  at::Tensor targets;  // int64 [T]
  at::Tensor scale;    // [T], in the dtype of the statistics
};

/// logits[t, j] <- (exp(z - M) / S - [j = target]) * scale[t], in place, in the logits' dtype.
void cross_entropy_gradient_(const at::Tensor& logits, const CrossEntropySaved& saved,
                             const VocabRange& range);

/// Whether the next function takes one pass: bf16 on GPUs of compute capability 9.0 or more, v a multiple of 8 and at most
/// 450,560.
bool has_cross_entropy_with_gradient(const at::Tensor& logits);
/// The losses [T] of logits whose whole rows are here, in the dtype of the statistics, and
/// logits[t, j] <- exp(z - M) / S - [j = target] in place: one pass that reads and writes, where statistics and gradient read
/// twice. Otherwise those two.
at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        const VocabRange& range);
/// What that gradient lacks, for scales [T] that come later: row t is multiplied by scale[t] / c, in place, where that is not 1,
/// with c, the result [1], the scale of largest magnitude. Gradient times c is that of the scaled losses. Rows of scale 0 become
/// zero whatever they hold. In most trainings all scales are c or 0, so nothing is rounded again.
at::Tensor cross_entropy_scale_(const at::Tensor& gradient, const at::Tensor& scale);

/// The gradient of cross_entropy_gradient_ of logits [T, v] cast to FP8 (fp8.h), to the bit: it is rounded to the logits' dtype before. bf16 and f16
/// on a GPU take one pass, which leaves the logits as they are; otherwise they are overwritten.
Fp8Matrix cross_entropy_gradient_fp8(const at::Tensor& logits, const CrossEntropySaved& saved,
                                     const VocabRange& range, const Fp8Cast& cast);

}  // namespace teratron
