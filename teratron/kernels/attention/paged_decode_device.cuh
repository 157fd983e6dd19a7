// How the threads of a block of paged_decode_cuda.cu share keys and channels.
#pragma once

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/cluster.cuh"
#include "teratron/kernels/common/device.cuh"

namespace teratron::cuda {

inline constexpr int threads = 128;

__host__ __device__ constexpr int ceil_quotient(int a, int b) {
  return (a + b - 1) / b;
}

/// Keys [begin, end) of a block, and the position of the new token, which is the last key.
struct KeyRange {
  int begin, end, last;

  __device__ KeyRange(const PagedDecodeArgs& args, int row, int split, int step) {
    last = static_cast<int>(args.positions[row * args.position_stride]);
    const int low = args.window > 0 ? max(0, last + 1 - static_cast<int>(args.window)) : 0;
    const int per_split = ceil_quotient(ceil_quotient(last + 1 - low, args.splits), step) * step;
    begin = low + split * per_split;
    end = min(begin + per_split, last + 1);
  }
  __device__ bool has_last() const { return begin <= last && last < end; }
};

/// The sequence and the query heads of a block (split, group and chunk of its heads, row).
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
  /// Of position j, in elements.
  __device__ int64_t slot(int j) const {
    const int64_t page = table[j >> args.page_shift];
    const int64_t token = (page << args.page_shift) + (j & ((1 << args.page_shift) - 1));
    return (token * args.groups + group) * args.channels;
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

/// A team of `lanes` threads computes with one key at a time, each with `packs` packs of channels, for H
/// query heads that share it.
template <typename T, int lanes, int packs, int H>
struct Team {
  static constexpr int V = 16 / sizeof(T), C = V * packs;
  float q[H][C], sum[H][C], max[H], weight[H], slope[H];
  int lane;

  __device__ explicit Team(int own_lane) : lane(own_lane) {}

  __device__ int channel(int pack) const { return (pack * lanes + lane) * V; }

  struct Vector {
    uint4 raw[packs];  // a pack each; as they are, or the compiler loads element by element
  };
  /// Zeros unless `valid`; x can be read in any case, which saves branches.
  __device__ Vector load_vector(const T* x, bool valid, int channels) const {
    Vector to;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const bool has = valid && channel(p) < channels;
      const uint4 raw = *reinterpret_cast<const uint4*>(x + (has ? channel(p) : 0));
      to.raw[p] = {has ? raw.x : 0, has ? raw.y : 0, has ? raw.z : 0, has ? raw.w : 0};
    }
    return to;
  }
  __device__ static void widen_raw(const uint4& raw, float (&to)[V]) {
    Pack<T, V> pack;
    memcpy(&pack, &raw, sizeof(pack));
    widen(pack, to);
  }
  __device__ static void widen_vector(const Vector& from, float (&to)[C]) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      float part[V];
      widen_raw(from.raw[p], part);
#pragma unroll
      for (int i = 0; i < V; ++i) to[p * V + i] = part[i];
    }
  }

  /// Queries, rotated and scaled.
  __device__ void start(const PagedWork<T, H>& work, int position) {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const bool valid = h < work.heads;
      const T* const x = work.query(valid ? h : 0);
      const Vector own = load_vector(x, valid, work.args.channels);
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        float part[V];
        widen_raw(own.raw[p], part);
        if (valid && channel(p) < work.args.channels) rotate<V>(work.args, position, x, channel(p), part);
#pragma unroll
        for (int i = 0; i < V; ++i) q[h][p * V + i] = part[i] * work.args.scale, sum[h][p * V + i] = 0.0f;
      }
      max[h] = -INFINITY;
      weight[h] = 0.0f;
      slope[h] = work.args.slopes && h < work.heads ? work.args.slopes[work.head() + h] : 0.0f;
    }
  }

  /// The new key, rotated, to `new_key` and to its slot, and the new value; by one team.
  __device__ void store_new(const PagedWork<T, H>& work, int position, T* new_key) const {
    const int64_t at = work.slot(position);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int c = channel(p);
      if (c >= work.args.channels) continue;
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

  __device__ float score(int h, const float (&k)[C]) const {
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < C; ++i) dot = fmaf(q[h][i], k[i], dot);
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, offset);
    return dot;
  }

  /// Two keys; a score of -inf is none.
  __device__ void add(int h, float s0, float s1, const float (&v0)[C], const float (&v1)[C]) {
    const float top = fmaxf(max[h], fmaxf(s0, s1));
    if (top == -INFINITY) return;
    const float keep = fast_exp(max[h] - top), w0 = fast_exp(s0 - top), w1 = fast_exp(s1 - top);
    max[h] = top;
    weight[h] = weight[h] * keep + w0 + w1;
#pragma unroll
    for (int i = 0; i < C; ++i) sum[h][i] = fmaf(w1, v1[i], fmaf(w0, v0[i], sum[h][i] * keep));
  }
};

/// Keys and values of a block, some per team in flight.
template <typename T, int lanes, int packs, int H>
struct KeyStream {
  using Mine = Team<T, lanes, packs, H>;
  static constexpr int teams = threads / lanes, at_once = packs == 1 ? 4 : 2;
  typename Mine::Vector k[at_once], v[at_once];

  __device__ static int position(int first_key, int u) {
    return first_key + u * teams + static_cast<int>(threadIdx.x) / lanes;
  }
  /// From their pages, but not the new ones.
  __device__ void load(const PagedWork<T, H>& work, const KeyRange& keys, const Mine& mine, int first_key) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int j = position(first_key, u);
      const bool cached = j < keys.end && j != keys.last;
      const int64_t at = cached ? work.slot(j) : 0;
      const int channels = work.args.channels;
      k[u] = mine.load_vector(static_cast<const T*>(work.args.k_pages) + at, cached, channels);
      v[u] = mine.load_vector(static_cast<const T*>(work.args.v_pages) + at, cached, channels);
    }
  }
  /// The new ones, if they are among these.
  __device__ void add_new(const PagedWork<T, H>& work, const KeyRange& keys, const Mine& mine, int first_key,
                          const T* new_key) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      if (position(first_key, u) != keys.last || keys.last >= keys.end) continue;
      k[u] = mine.load_vector(new_key, true, work.args.channels);
      v[u] = mine.load_vector(work.new_v, true, work.args.channels);
    }
  }
  __device__ void attend(const PagedWork<T, H>& work, const KeyRange& keys, int first_key, Mine& mine) const {
#pragma unroll
    for (int u = 0; u < at_once; u += 2) {
      float key[2][Mine::C], value[2][Mine::C];
#pragma unroll
      for (int two = 0; two < 2; ++two) {
        Mine::widen_vector(k[u + two], key[two]);
        Mine::widen_vector(v[u + two], value[two]);
      }
#pragma unroll
      for (int h = 0; h < H; ++h) {
        float s[2];
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          s[two] = mine.score(h, key[two]);
          const int j = position(first_key, u + two);
          s[two] = j < keys.end ? fmaf(mine.slope[h], static_cast<float>(j - keys.last), s[two]) : -INFINITY;
        }
        mine.add(h, s[0], s[1], value[0], value[1]);
      }
    }
  }
};

}  // namespace teratron::cuda
