// Segments: runs of tokens that attend only to each other, such as the documents of a packed sample. Padding
// is a segment too, so it never reaches other tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// Query segment i attends to key segment i. No segment spans two samples.
struct Segments {
  /// i32 [count + 1], contiguous, on the device of the queries: the first token of each segment, then the
  /// number of tokens; token s of sample b is b * S + s. The last number may be repeated: such segments are
  /// empty, so that shapes need not depend on the documents. On a GPU each still costs S / 64 blocks or fewer
  /// per head, and 128 rows of fp32 gradients in backward.
  at::Tensor cu_seqlens_q;
  at::Tensor cu_seqlens_k;  // undefined: the same (self-attention)

  bool defined() const { return cu_seqlens_q.defined(); }
  const at::Tensor& keys() const { return cu_seqlens_k.defined() ? cu_seqlens_k : cu_seqlens_q; }
};

/// [T] tokens b * S + s of `length` S and `batch` samples -> i64 [S, B]: their segments, numbered through.
/// Undefined without segments.
at::Tensor segments_of_tokens(const Segments& segments, int64_t length, int64_t batch);

}  // namespace teratron
