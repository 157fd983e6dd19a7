// Which keys a query sees: an interval of its sample, for host and device. Internal to kernels.
#pragma once

#include "teratron/base/philox.h"

namespace teratron {

/// Keys begin ... end - 1; begin <= end. Both ends grow with the query.
struct KeyRange {
  int32_t begin, end;
};

/// As nn/attention/attention.h defines it.
struct AttentionMask {
  int queries, keys;  // of a sample
  bool causal;
  int window;  // 0: no
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
  int segments;  // 0: a sample is one
};

/// The last index i < count with bounds[i] <= token: empty segments are skipped.
TERATRON_HOST_DEVICE int segment_of(const int32_t* bounds, int count, int token) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (bounds[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

TERATRON_HOST_DEVICE KeyRange key_range(const AttentionMask& mask, int batch, int query) {
  int begin = 0, last = mask.keys, diagonal = query + mask.keys - mask.queries;
  if (mask.segments > 0) {
    const int token = batch * mask.queries + query;
    const int segment = segment_of(mask.cu_seqlens_q, mask.segments, token);
    begin = mask.cu_seqlens_k[segment] - batch * mask.keys;
    last = mask.cu_seqlens_k[segment + 1] - batch * mask.keys;
    // The last query of a segment sees its last key, the query before it one key less, and so on.
    diagonal = last - (mask.cu_seqlens_q[segment + 1] - token);
  }
  int end = mask.causal ? diagonal + 1 : last;
  if (end < begin) end = begin;
  if (end > last) end = last;
  if (mask.window > 0 && begin < end - mask.window) begin = end - mask.window;
  return {begin, end};
}

}  // namespace teratron
