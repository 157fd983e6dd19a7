// Launchers of the kernels of attention. Raw device pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/attention/key_range.h"
#include "teratron/kernels/attention/score_dropout.h"
#include "teratron/kernels/common/column_reduction.h"
#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

/// Strides in elements; the channels are contiguous.
struct QkvPart {
  const void* data;
  int64_t stride_s, stride_b, stride_group, stride_head;  // k and v have one head per group: stride_head = 0
};

struct MergeQkvArgs {
  QkvPart q, k, v;
  void* out;  // [length, batch, groups, per_group, channels]; q, k and v may all be views of it
  int64_t length, batch, groups;
  int64_t per_group;  // heads: the queries, a key and a value
  int64_t channels;
  Dtype dtype;
  // RoPE of style `half` over all channels; null: none.
  const float *cos, *sin;  // [positions, channels / 2]
  const int64_t* positions;
  int64_t position_stride_s, position_stride_b;
  ColumnReduction dbias;  // before rounding
};
/// Whether the kernel supports these arguments: 16-bit types, vectorizable strides and addresses.
TERATRON_LAUNCHER(bool, can_merge_qkv, const MergeQkvArgs& args);
TERATRON_LAUNCHER(int64_t, merge_qkv_workspace_rows, const MergeQkvArgs& args);
TERATRON_LAUNCHER(void, merge_qkv, const MergeQkvArgs& args, CUstream_st* stream);

/// Heads are numbered n = outer * inner_heads + inner, [S, B, outer, inner, D]; strides in elements.
struct RopeStrides {
  int64_t s, b, outer, inner;
};

/// rotated = 0 copies.
struct RopeArgs {
  const void* in;
  void* out;  // may be `in`, with its strides
  RopeStrides in_strides, out_strides;
  const void *cos, *sin;  // f32 [P, rotated / 2]
  const int64_t* positions;
  int64_t position_stride_s, position_stride_b;
  int64_t length, batch, outer, inner, channels, rotated;
  Dtype dtype;
  bool interleaved;
  bool inverse;
};
TERATRON_LAUNCHER(void, rope, const RopeArgs& args, CUstream_st* stream);

struct SoftmaxArgs {
  int64_t batch, heads, queries, keys;
  Dtype dtype;
  double scale;
  bool causal;
  const bool* masked;
  int64_t masked_strides[4];
  const void* slopes;   // accumulation type
  const void* in;       // scores, or dy
  const void* saved;    // backward: the probabilities
  void* probabilities;  // forward
  void* out;            // forward: y, null without dropout; backward: dscores
  ScoreDropout dropout;
};
TERATRON_LAUNCHER(void, softmax_forward, const SoftmaxArgs& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, softmax_backward, const SoftmaxArgs& args, CUstream_st* stream);

/// Strides in elements; see paged_decode.h.
struct PagedDecodeArgs {
  const void *q, *k = nullptr, *v = nullptr;  // without k and v there is no new token
  int64_t q_stride_row, q_stride_group, q_stride_head, k_stride_row = 0, k_stride_group = 0, v_stride_row = 0,
                                                       v_stride_group = 0;
  void *k_pages, *v_pages;
  const int32_t* table;
  int64_t pages_per_row;
  const int64_t* positions;
  int64_t position_stride;
  int page_shift;  // log2 of the page size
  int rows, heads, groups, channels;
  Dtype dtype;
  float scale;
  float softcap;  // 0: none
  int64_t window, chunk;
  const float* slopes;
  const float* sinks = nullptr;  // [heads]; null: none
  const float* bias = nullptr;   // of the first head at distance 0
  int64_t bias_stride = 0;
  const float *cos = nullptr, *sin = nullptr;  // RoPE of queries and new keys; null: none
  int rotated = 0;
  bool interleaved = false;
  int splits;
  bool clustered;  // the splits of a head are a cluster of blocks, at most 8
  float* partial;  // [rows, heads, splits, channels + 2] if there are splits without a cluster
  void* out;       // [rows, heads, channels]
};
TERATRON_LAUNCHER(bool, has_paged_decode_clusters);
TERATRON_LAUNCHER(void, paged_decode, const PagedDecodeArgs& args, CUstream_st* stream);

/// Strides in elements, multiples of 8; channels are contiguous.
struct HeadTensor {
  void* data;
  int64_t stride_s, stride_b, stride_head;
};

/// See fused_attention.h. What a pass does not use is null.
struct FusedAttentionArgs {
  AttentionMask mask;
  int batch, heads, groups, channels;
  Dtype dtype;
  float scale;
  float softcap;     // 0: none
  KeyRange* ranges;  // [batch, queries] with segments: written by the forward; else null
  HeadTensor q, k, v, y, dy, dq, dk, dv;
  float* logsumexp;  // [batch, heads, queries], base 2; inf without keys
  float* delta;      // the same shape: sum of y dy
  const float* bias;
  int64_t bias_stride;
  float* dbias_slabs;  // zeros: see fused_attention_slabs(); null: no gradient of the bias
  float* dbias;        // [heads, queries + keys - 1]
  ScoreDropout dropout;
};
/// The gradient of the bias is first summed over the diagonals of slabs of this many queries each:
/// [batch, heads, slabs, columns], column c of slab s for key c - (rows - 1) relative to the first query.
TERATRON_HOST_DEVICE int fused_attention_slab_rows(int channels) {
  return channels <= 64 ? 32 : 16;
}
TERATRON_HOST_DEVICE int fused_attention_slabs(const FusedAttentionArgs& args) {
  return (args.mask.queries + 127) / 128 * 128 / fused_attention_slab_rows(args.channels);
}
TERATRON_HOST_DEVICE int fused_attention_slab_columns(const FusedAttentionArgs& args) {
  return (args.mask.keys + 31) / 32 * 32 + 32;
}
TERATRON_LAUNCHER(void, fused_attention_forward, const FusedAttentionArgs& args, CUstream_st* stream);
/// Also fills delta, which fused_attention_dkv reads.
TERATRON_LAUNCHER(void, fused_attention_dq, const FusedAttentionArgs& args, CUstream_st* stream);
TERATRON_LAUNCHER(void, fused_attention_dkv, const FusedAttentionArgs& args, CUstream_st* stream);

/// See merge_attention.h. Strides in elements; channels are contiguous.
struct MergePart {
  const void* y;
  const float* logsumexp;
  bool is_wide;  // y is f32 whatever the dtype
  int64_t first, queries;
  int64_t y_s, y_b, y_n;
  int64_t l_b, l_n, l_s;
};
inline constexpr int max_merge_parts = 4;

struct MergeArgs {
  MergePart parts[max_merge_parts];
  int count;
  void* y;           // [queries, batch, heads, channels]
  float* logsumexp;  // [batch, heads, queries]
  int64_t queries, batch, heads, channels;
  Dtype dtype;    // not f64
  bool wide_out;  // y is f32 whatever the dtype
};
TERATRON_LAUNCHER(void, merge_attention, const MergeArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
