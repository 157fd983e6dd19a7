// The keys of a block of paged_decode_cuda.cu in bf16 or f16: a warp computes with 16 keys at a time for up
// to 8 query heads that share them, on the tensor cores of mma.cuh:
//
//   scores [16 keys, 8 heads] = K q^T,   sums [W channels, 8 heads] += V^T p^T
//
// Nothing passes through shared memory, since the order of channels and of rows is free. With g and t of
// mma.cuh a lane loads 16 bytes at a time,
//   of keys g and g + 8, channels 32 s + 8 t ... + 7 for each s: two steps of the product over channels,
//     whose order is permuted in q as in K;
//   of values 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, channels 64 s + 8 g ... + 7: neighboring values, paired, are
//     rows g and g + 8 of four tiles of V^T, which are channels 64 s + 8 g + 2 m and the next of tile m.
// The next keys are loaded while scores become weights, the next values after the sums.
#pragma once

#include "teratron/kernels/attention/paged_decode_device.cuh"
#include "teratron/kernels/common/mma.cuh"

namespace teratron::cuda {

template <typename Type, int width>
struct PagedTiles {
  using T = Type;
  static constexpr int H = 8, W = width, parts = threads / 32, tile = 16, key_step = tile;
  static constexpr int blocks_per_sm = W <= 64 ? 4 : W <= 128 ? 3 : 1;
  static constexpr unsigned all_lanes = 0xFFFFFFFFu;
  using Work = PagedWork<T, H>;

  uint4 k[2][W / 32], v[4][W / 64], q[W / 32];
  float sum[W / 16][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, weight[2] = {}, slope[2];  // of heads 2 t and 2 t + 1

  __device__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static int first_of_warp(const KeyRange& keys) {
    return keys.begin + static_cast<int>(threadIdx.x) / 32 * tile;
  }
  __device__ static int key_of(int first_key, int half) { return first_key + g() + 8 * half; }
  __device__ static int value_of(int first_key, int i) { return first_key + 2 * t() + i % 2 + i / 2 * 8; }

  __device__ void set_key(int half, const T* from, bool valid, int channels) {
#pragma unroll
    for (int s = 0; s < W / 32; ++s) k[half][s] = load_channels(from, valid, 32 * s + 8 * t(), channels);
  }
  __device__ void set_value(int i, const T* from, bool valid, int channels) {
#pragma unroll
    for (int s = 0; s < W / 64; ++s) v[i][s] = load_channels(from, valid, 64 * s + 8 * g(), channels);
  }
  __device__ void load_keys(const Work& work, const KeyRange& keys, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = key_of(first_key, half);
      const bool cached = keys.cached(j);
      set_key(half, static_cast<const T*>(work.args.k_pages) + (cached ? work.slot(j) : 0), cached,
              work.args.channels);
    }
  }
  __device__ void load_values(const Work& work, const KeyRange& keys, int first_key) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = value_of(first_key, i);
      const bool cached = keys.cached(j);
      set_value(i, static_cast<const T*>(work.args.v_pages) + (cached ? work.slot(j) : 0), cached,
                work.args.channels);
    }
  }
  __device__ void load_first(const Work& work, const KeyRange& keys) {
    load_keys(work, keys, first_of_warp(keys));
    load_values(work, keys, first_of_warp(keys));
  }

  __device__ void start(const Work& work, const KeyRange& keys) {
#pragma unroll
    for (int s = 0; s < W / 32; ++s) {
      const Pack<T, 8> own = load_query(work, g(), 32 * s + 8 * t(), keys.last);
      memcpy(&q[s], &own, sizeof(own));
    }
    slope[0] = work.slope(2 * t());
    slope[1] = work.slope(2 * t() + 1);
  }

  /// The new key and value, if they are among these.
  __device__ void add_new(const Work& work, const KeyRange& keys, int first_key, const T* new_key) {
    if (!keys.has_new()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (key_of(first_key, half) == keys.added) set_key(half, new_key, true, work.args.channels);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (value_of(first_key, i) == keys.added) set_value(i, work.new_v, true, work.args.channels);
    }
  }

  /// Element i: key g + 8 (i / 2), head 2 t + i % 2.
  __device__ void scores(const Work& work, const KeyRange& keys, int first_key, float (&score)[4]) const {
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int s = 0; s < W / 32; ++s) {
      mma<T>(even, {k[0][s].x, k[1][s].x, k[0][s].y, k[1][s].y}, q[s].x, q[s].y);
      mma<T>(odd, {k[0][s].z, k[1][s].z, k[0][s].w, k[1][s].w}, q[s].z, q[s].w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = key_of(first_key, i / 2);
      const float bias = work.bias(2 * t() + i % 2, slope[i % 2], j - keys.last);
      score[i] = j < keys.end ? work.capped((even[i] + odd[i]) * work.args.scale) + bias : -INFINITY;
    }
  }

  /// Scores become exp(score - max), and what was summed before is scaled to the new maximum.
  __device__ void weigh(float (&score)[4]) {
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = fmaxf(score[h], score[2 + h]);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        top = fmaxf(top, __shfl_xor_sync(all_lanes, top, offset));
      top = fmaxf(top, max[h]);  // finite: the first key of a tile exists
      keep[h] = fast_exp(max[h] - top);
      max[h] = top;
      score[h] = fast_exp(score[h] - top);
      score[2 + h] = fast_exp(score[2 + h] - top);
      weight[h] = weight[h] * keep[h] + score[h] + score[2 + h];  // of the lane's keys
    }
#pragma unroll
    for (int m = 0; m < W / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][i] *= keep[i % 2];
    }
  }

  __device__ static uint32_t word(const uint4& x, int m) {
    return m == 0 ? x.x : m == 1 ? x.y : m == 2 ? x.z : x.w;
  }
  __device__ void add_values(const float (&p)[4]) {
    const uint32_t b0 = movmatrix_trans(round_pair<T>(p[0], p[1]));
    const uint32_t b1 = movmatrix_trans(round_pair<T>(p[2], p[3]));
#pragma unroll
    for (int s = 0; s < W / 64; ++s) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t x0 = word(v[0][s], m), x1 = word(v[1][s], m), x2 = word(v[2][s], m),
                       x3 = word(v[3][s], m);
        mma<T>(sum[4 * s + m],
               {__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(x2, x3, 0x5410),
                __byte_perm(x2, x3, 0x7632)},
               b0, b1);
      }
    }
  }

  __device__ void attend_all(const Work& work, const KeyRange& keys, const T* new_key) {
    for (int first_key = first_of_warp(keys); first_key < keys.end; first_key += parts * tile) {
      if (first_key + tile > keys.last) add_new(work, keys, first_key, new_key);
      float score[4];
      scores(work, keys, first_key, score);
      load_keys(work, keys, first_key + parts * tile);
      weigh(score);
      add_values(score);
      load_values(work, keys, first_key + parts * tile);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        weight[h] += __shfl_xor_sync(all_lanes, weight[h], offset);
    }
  }

  __device__ void store(HeadSums<H, W> (&all)[parts]) const {
    HeadSums<H, W>& mine = all[threadIdx.x / 32];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * t() + h;
      if (g() == 0) mine.max[head] = max[h], mine.weight[head] = weight[h];
#pragma unroll
      for (int m = 0; m < W / 16; ++m) {
        const int channel = m / 4 * 64 + 8 * g() + m % 4 * 2;
        *reinterpret_cast<float2*>(&mine.value[mine.at(head, channel)]) =
            make_float2(sum[m][h], sum[m][2 + h]);
      }
    }
  }
};

}  // namespace teratron::cuda
