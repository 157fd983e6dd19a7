// The keys of a block of paged_decode_cuda.cu in f32: a team of `lanes` threads computes with one key at a
// time, each thread with `packs` packs of channels, for H query heads that share it.
#pragma once

#include "teratron/kernels/attention/paged_decode_device.cuh"

namespace teratron::cuda {

template <int lanes, int packs, int query_heads>
struct PagedTeams {
  using T = float;
  static constexpr int H = query_heads, V = 4, C = V * packs, W = lanes * C;
  static constexpr int parts = threads / lanes, at_once = packs == 1 ? 4 : 2, key_step = parts;
  static constexpr int blocks_per_sm = 1;
  using Work = PagedWork<float, H>;

  float q[H][C], sum[H][C], max[H], weight[H], slope[H];
  uint4 k[at_once][packs], v[at_once][packs];

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ static int channel(int pack) { return (pack * lanes + lane()) * V; }
  __device__ static int position(int first_key, int u) {
    return first_key + u * parts + static_cast<int>(threadIdx.x) / lanes;
  }

  __device__ void load(const Work& work, const KeyRange& keys, int first_key) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int j = position(first_key, u);
      const bool cached = keys.cached(j);
      const int64_t at = cached ? work.slot(j) : 0;
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        const int channels = work.args.channels;
        k[u][p] = load_channels(static_cast<const T*>(work.args.k_pages) + at, cached, channel(p), channels);
        v[u][p] = load_channels(static_cast<const T*>(work.args.v_pages) + at, cached, channel(p), channels);
      }
    }
  }
  __device__ void load_first(const Work& work, const KeyRange& keys) { load(work, keys, keys.begin); }

  __device__ void start(const Work& work, const KeyRange& keys) {
#pragma unroll
    for (int h = 0; h < H; ++h) {
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        float part[V];
        widen(load_query(work, h, channel(p), keys.last), part);
#pragma unroll
        for (int i = 0; i < V; ++i) q[h][p * V + i] = part[i] * work.args.scale, sum[h][p * V + i] = 0.0f;
      }
      max[h] = -INFINITY;
      weight[h] = 0.0f;
      slope[h] = work.slope(h);
    }
  }

  /// The new key and value, if they are among these.
  __device__ void add_new(const Work& work, const KeyRange& keys, int first_key, const T* new_key) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      if (position(first_key, u) != keys.added || keys.added >= keys.end) continue;
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        k[u][p] = load_channels(new_key, true, channel(p), work.args.channels);
        v[u][p] = load_channels(work.new_v, true, channel(p), work.args.channels);
      }
    }
  }

  __device__ float score(int h, const float (&key)[C]) const {
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < C; ++i) dot = fmaf(q[h][i], key[i], dot);
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, offset);
    return dot;
  }

  __device__ void attend(const Work& work, const KeyRange& keys, int first_key) {
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      float key[C], value[C];
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        widen_raw<V, T>(k[u][p], reinterpret_cast<float(&)[V]>(key[p * V]));
        widen_raw<V, T>(v[u][p], reinterpret_cast<float(&)[V]>(value[p * V]));
      }
      const int j = position(first_key, u);
#pragma unroll
      for (int h = 0; h < H; ++h) {
        const float s = work.capped(score(h, key)) + work.bias(h, slope[h], j - keys.last);
        if (j >= keys.end) continue;
        const float top = fmaxf(max[h], s), keep = fast_exp(max[h] - top), own = fast_exp(s - top);
        max[h] = top;
        weight[h] = weight[h] * keep + own;
#pragma unroll
        for (int i = 0; i < C; ++i) sum[h][i] = fmaf(own, value[i], sum[h][i] * keep);
      }
    }
  }

  __device__ void attend_all(const Work& work, const KeyRange& keys, const T* new_key) {
    constexpr int step = at_once * parts;
    for (int first_key = keys.begin; first_key < keys.end; first_key += step) {
      if (first_key > keys.begin) load(work, keys, first_key);
      if (first_key + step > keys.last) add_new(work, keys, first_key, new_key);
      attend(work, keys, first_key);
    }
  }

  __device__ void store(HeadSums<H, W> (&all)[parts]) const {
    HeadSums<H, W>& mine = all[threadIdx.x / lanes];
#pragma unroll
    for (int h = 0; h < H; ++h) {
      if (lane() == 0) mine.max[h] = max[h], mine.weight[h] = weight[h];
#pragma unroll
      for (int i = 0; i < C; ++i) mine.value[mine.at(h, channel(i / V) + i % V)] = sum[h][i];
    }
  }
};

}  // namespace teratron::cuda
