// Segments: runs of tokens that attend only to each other, such as the documents of a packed sample. Padding is
// a segment too, so it never reaches other tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// Query segment i attends to key segment i. No segment spans two samples.
struct Segments {
  /// i32 [count + 1], contiguous, on the device of the queries: the first token of each segment, then the number
  /// of tokens; token s of sample b is b * S + s. The last number may be repeated: such segments are empty, so
  /// that shapes need not depend on the documents.
  at::Tensor cu_seqlens_q;
  at::Tensor cu_seqlens_k;  // undefined: the same (self-attention)

  bool defined() const { return cu_seqlens_q.defined(); }
  const at::Tensor& keys() const { return cu_seqlens_k.defined() ? cu_seqlens_k : cu_seqlens_q; }
};

/// Segments given by the first position that each token attends to, i32 [B, S]; one per token, most of them
/// empty. Undefined if the argument is.
Segments segments_of_starts(const at::Tensor& segment_start_BS);

/// Keys [begin, end) of its sample that each query of [B, Sq] sees within its segment, i32.
struct KeyRange {
  at::Tensor begin_BS, end_BS;
};

struct SegmentedShape {
  int64_t batch = 0, queries = 0, keys = 0;  // queries and keys of one sample
};

/// With `causal`, the last query of a segment sees its last key, the query before it one key less, and so on.
KeyRange visible_keys(const Segments& segments, const SegmentedShape& shape, bool causal);

}  // namespace teratron
