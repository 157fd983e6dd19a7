// Launcher of qkv.h. Raw device pointers; null where a tensor is undefined.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"
#include "teratron/kernels/common/row_sum.h"

struct CUstream_st;

namespace teratron::cuda {

/// Strides in elements; the channels are contiguous.
struct QkvPart {
  const void* data;
  int64_t stride_s, stride_b, stride_group, stride_head;  // of k and v: no heads, 0
};

struct MergeQkvArgs {
  QkvPart q, k, v;
  void* out;  // [length, batch, groups, per_group, channels]; q, k and v may all be its parts
  int64_t length, batch, groups;
  int64_t per_group;  // queries, a key and a value
  int64_t channels;
  Dtype dtype;
  // Rotation by halves of all channels; null: none.
  const float *cos, *sin;  // [positions, channels / 2]
  const int64_t* positions;
  int64_t position_stride_s, position_stride_b;
  RowSum sum;  // before rounding
};
/// Whether the kernel takes this: 16-bit types in aligned packs.
bool can_merge_qkv(const MergeQkvArgs& args);
/// How many rows of partial sums it writes.
int64_t merge_qkv_partials(const MergeQkvArgs& args);
void merge_qkv(const MergeQkvArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
