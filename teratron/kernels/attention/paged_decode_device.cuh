// What the blocks of paged_decode_cuda.cu have in common: which keys and heads they have, rotation, storing
// of the new key and value, and adding up of their parts.
#pragma once

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/cluster.cuh"
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/predicated_load.cuh"

namespace teratron::cuda {

inline constexpr int threads = 128;

__host__ __device__ constexpr int ceil_quotient(int a, int b) {
  return (a + b - 1) / b;
}

/// Keys [begin, end) of a block, the position of the last key, and that of the new token: it, or -1.
struct KeyRange {
  int begin, end, last, added;

  __device__ KeyRange(const PagedDecodeArgs& args, int row, int split, int step) {
    last = static_cast<int>(args.positions[row * args.position_stride]);
    added = args.k ? last : -1;
    int low = args.window > 0 ? max(0, last + 1 - static_cast<int>(args.window)) : 0;
    if (args.chunk > 0) low = max(low, last - last % static_cast<int>(args.chunk));
    const int per_split = ceil_quotient(ceil_quotient(last + 1 - low, args.splits), step) * step;
    begin = low + split * per_split;
    end = min(begin + per_split, last + 1);
  }
  __device__ bool has_new() const { return begin <= added && added < end; }
  /// Whether position j is in its page already.
  __device__ bool cached(int j) const { return j < end && j != added; }
};

/// The sequence and the query heads, at most H, of a block (split, group and chunk of its heads, row).
template <typename T, int H>
struct PagedWork {
  const PagedDecodeArgs& args;
  int row, group, first, heads;
  const int32_t* table;
  const T *new_k, *new_v;

  __device__ explicit PagedWork(const PagedDecodeArgs& a) : args(a), row(blockIdx.z) {
    const int per_group = a.heads / a.groups, chunks = ceil_quotient(per_group, H);
    group = blockIdx.y / chunks;
    first = blockIdx.y % chunks * H;
    heads = min(H, per_group - first);
    table = a.table + row * a.pages_per_row;
    new_k = static_cast<const T*>(a.k) + row * a.k_stride_row + group * a.k_stride_group;
    new_v = static_cast<const T*>(a.v) + row * a.v_stride_row + group * a.v_stride_group;
  }
  /// Its first head, in the model.
  __device__ int head() const { return group * (args.heads / args.groups) + first; }
  /// Its first head in the output.
  __device__ int64_t out_head() const { return static_cast<int64_t>(row) * args.heads + head(); }
  /// Offset of position j, in elements.
  __device__ int64_t slot(int j) const {
    const int64_t page = table[j >> args.page_shift];
    const int64_t token = (page << args.page_shift) + (j & ((1 << args.page_shift) - 1));
    return (token * args.groups + group) * args.channels;
  }
  /// ALiBi's of a head.
  __device__ float slope(int h) const { return args.slopes && h < heads ? args.slopes[head() + h] : 0.0f; }
  /// What is added to the score of a head, with this slope, and a key `distance` after the last one.
  __device__ float bias(int h, float slope, int distance) const {
    if (args.bias == nullptr) return slope * static_cast<float>(distance);
    return h < heads ? args.bias[(head() + h) * args.bias_stride + min(distance, 0)] : 0.0f;
  }
  /// A score before its bias, with the soft cap if there is one.
  __device__ float capped(float score) const {
    if (args.softcap == 0.0f) return score;
    return args.softcap - 2.0f * args.softcap / (1.0f + fast_exp(2.0f * score / args.softcap));
  }
  __device__ const T* query(int h) const {
    return static_cast<const T*>(args.q) + row * args.q_stride_row + group * args.q_stride_group +
           (first + h) * args.q_stride_head;
  }
};

/// RoPE (rope.h) of V neighboring channels, from `channel` on, of the head x; rounded to T.
template <int V, typename T>
__device__ void rotate(const PagedDecodeArgs& args, int position, const T* x, int channel, float (&own)[V]) {
  if (args.cos == nullptr || channel >= args.rotated) return;
  const int half = args.rotated / 2;
  const float* const cos = args.cos + static_cast<int64_t>(position) * half;
  const float* const sin = args.sin + static_cast<int64_t>(position) * half;
  float rotated[V];
  if (args.interleaved) {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const float c = cos[(channel + i) / 2], s = sin[(channel + i) / 2];
      rotated[i] = own[i] * c - own[i + 1] * s;
      rotated[i + 1] = own[i + 1] * c + own[i] * s;
    }
  } else {
    const bool is_low = channel < half;
    const int angle = is_low ? channel : channel - half;
    float other[V];
    widen(load<V>(x + (is_low ? channel + half : channel - half)), other);
#pragma unroll
    for (int i = 0; i < V; ++i)
      rotated[i] = own[i] * cos[angle + i] + (is_low ? -other[i] : other[i]) * sin[angle + i];
  }
  widen(round_to_pack<T>(rotated), own);
}

/// 16 bytes of x from `channel` on; zeros unless `valid`.
template <typename T>
__device__ uint4 load_channels(const T* x, bool valid, int channel, int channels) {
  return load_or_zero(x + channel, valid && channel < channels);
}

template <int V, typename T>
__device__ void widen_raw(const uint4& raw, float (&to)[V]) {
  Pack<T, V> pack;
  memcpy(&pack, &raw, sizeof(pack));
  widen(pack, to);
}

/// 16 bytes of a query from `channel` on, rotated; not yet scaled.
template <typename T, int H>
__device__ Pack<T, 16 / sizeof(T)> load_query(const PagedWork<T, H>& work, int h, int channel, int position) {
  constexpr int V = 16 / sizeof(T);
  const bool valid = h < work.heads;
  const T* const x = work.query(valid ? h : 0);
  float own[V];
  widen_raw<V, T>(load_channels(x, valid, channel, work.args.channels), own);
  if (valid && channel < work.args.channels) rotate<V>(work.args, position, x, channel, own);
  return round_to_pack<T>(own);
}

/// The new key, rotated, to `new_key` and to its slot, and the new value; by the first warp.
template <typename T, int H>
__device__ void store_new(const PagedWork<T, H>& work, int position, T* new_key) {
  constexpr int V = 16 / sizeof(T);
  const int64_t at = work.slot(position);
  for (int c = static_cast<int>(threadIdx.x) * V; c < work.args.channels; c += 32 * V) {
    float part[V];
    widen(load<V>(work.new_k + c), part);
    rotate<V>(work.args, position, work.new_k, c, part);
    const Pack<T, V> key = round_to_pack<T>(part);
    *reinterpret_cast<Pack<T, V>*>(new_key + c) = key;
    if (work.first > 0) continue;  // another block has the group's first heads
    store<V>(static_cast<T*>(work.args.k_pages) + at + c, key);
    store<V>(static_cast<T*>(work.args.v_pages) + at + c, load<V>(work.new_v + c));
  }
}

/// Sums of each head over some keys: the maximum of the scores, the sum of exp(score - max), and the values
/// weighted by it. W channels, padded so that pairs of heads are in different banks.
template <int H, int W>
struct alignas(16) HeadSums {
  float max[H], weight[H], value[H * W + H];

  __device__ static int at(int h, int channel) { return h * W + h / 2 * 2 + channel; }
};

/// value / weight of sums relative to the score `top`, with the sink of a head (of all in the model).
__device__ inline float normalized(const PagedDecodeArgs& args, int head, float top, float weight,
                                   float value) {
  if (args.sinks == nullptr) return value / weight;
  const float sink = args.sinks[head], most = fmaxf(top, sink), factor = fast_exp(top - most);
  return value * factor / fmaf(weight, factor, fast_exp(sink - most));
}

/// The sum over `count` parts at one channel of a head; at most `most` parts.
struct MergedSum {
  float top = -INFINITY, weight = 0.0f, value = 0.0f;

  /// max_of, weight_of and value_of a part.
  template <int most, typename Max, typename Weight, typename Value>
  __device__ static MergedSum of(int count, Max max_of, Weight weight_of, Value value_of) {
    MergedSum all;
    float max[most];
#pragma unroll
    for (int p = 0; p < most; ++p) {
      max[p] = p < count ? max_of(p) : -INFINITY;
      all.top = fmaxf(all.top, max[p]);
    }
#pragma unroll
    for (int p = 0; p < most; ++p) {
      if (max[p] == -INFINITY) continue;
      const float factor = fast_exp(max[p] - all.top);
      all.weight += factor * weight_of(p);
      all.value += factor * value_of(p);
    }
    return all;
  }
};

}  // namespace teratron::cuda
