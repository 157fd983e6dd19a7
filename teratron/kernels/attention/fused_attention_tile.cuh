// What the kernels of fused_attention.h share. A warp holds scores [16 MT, 8 NT] and outputs [16 MT, D] as
// accumulators of mma.cuh.
#pragma once

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/mma.cuh"

namespace teratron::cuda {

template <int MT, int N>
using Accumulators = float[MT][N][4];

/// g and t of mma.cuh.
__device__ inline int lane_row() {
  return threadIdx.x % 32 / 4;
}
__device__ inline int lane_pair() {
  return threadIdx.x % 4;
}
__device__ inline int warp_index() {
  return threadIdx.x / 32;
}

template <int MT, int N>
__device__ void clear(Accumulators<MT, N>& x) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[mt][n][i] = 0.0f;
    }
  }
}

/// Rows of one head of one sample.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;
  int count, channels;

  __device__ HeadRows(const HeadTensor& x, int batch, int head, int rows, int width)
      : data(static_cast<T*>(x.data) + batch * x.stride_b + head * x.stride_head),
        stride(x.stride_s),
        count(rows),
        channels(width) {}
};

/// Starts copying rows first, first + 1, ...; zeros where there are none.
template <int D, int rows, int threads, typename T>
__device__ void load_tile(const SharedTile<D>& tile, const HeadRows<T>& from, int first) {
  static_assert(rows * (D / 8) % threads == 0);
#pragma unroll
  for (int k = 0; k < rows * (D / 8) / threads; ++k) {
    const int i = k * threads + static_cast<int>(threadIdx.x), row = i / (D / 8), column = i % (D / 8) * 8;
    const bool valid = first + row < from.count && column < from.channels;
    const T* const source = from.data + (valid ? (first + row) * from.stride + column : 0);
    cp_async_or_zero<16>(tile.address + SharedTile<D>::offset(row, column), source, valid);
  }
}

/// Starts copying `count` values of the bias from distance `first` on; zeros where there are none.
template <int count, int threads>
__device__ void load_bias(SharedAddress to, const FusedAttentionArgs& args, int head, int first) {
  const int size = args.mask.queries + args.mask.keys - 1;
  const float* const bias = args.bias + head * args.bias_stride;
  const int begin = first + args.mask.queries - 1;
#pragma unroll
  for (int k = 0; k < (count + threads - 1) / threads; ++k) {
    const int i = k * threads + static_cast<int>(threadIdx.x), at = begin + i;
    if (i >= count) break;
    const bool valid = at >= 0 && at < size;
    cp_async_or_zero<4>(to + 4 * i, bias + (valid ? at : 0), valid);
  }
}

/// A [16 MT, D] that stays in registers.
template <int D, int MT>
struct RegisterOperand {
  uint32_t a[MT][D / 16][4];

  __device__ void load(const SharedTile<D>& tile, int row) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) tile.load_a(a[mt][k], row + 16 * mt, 16 * k);
    }
  }
  __device__ void get(uint32_t (&x)[4], int mt, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = a[mt][k][i];
  }
};
/// Operand fragments that are read from shared memory for each product.
template <int D>
struct SharedOperand {
  SharedTile<D> tile;
  int row;

  __device__ void get(uint32_t (&x)[4], int mt, int k) const { tile.load_a(x, row + 16 * mt, 16 * k); }
};

/// s += a tile^T, of the tile's first 8 NT rows.
template <typename T, int D, int MT, int NT, typename Operand>
__device__ void multiply_transposed(Accumulators<MT, NT>& s, const Operand& operand,
                                    const SharedTile<D>& tile) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[MT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) operand.get(a[mt], mt, k);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      uint32_t b[4];
      tile.load_b(b, 8 * n, 16 * k);
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        mma<T>(s[mt][n], a[mt], b[0], b[1]);
        mma<T>(s[mt][n + 1], a[mt], b[2], b[3]);
      }
    }
  }
}

/// o += p tile, of the tile's first 8 NT rows.
template <typename T, int D, int MT, int NT>
__device__ void multiply(Accumulators<MT, D / 8>& o, const Accumulators<MT, NT>& p,
                         const SharedTile<D>& tile) {
#pragma unroll
  for (int k = 0; k < NT; k += 2) {
    uint32_t a[MT][4];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      a[mt][0] = round_pair<T>(p[mt][k][0], p[mt][k][1]);
      a[mt][1] = round_pair<T>(p[mt][k][2], p[mt][k][3]);
      a[mt][2] = round_pair<T>(p[mt][k + 1][0], p[mt][k + 1][1]);
      a[mt][3] = round_pair<T>(p[mt][k + 1][2], p[mt][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      tile.load_b_rows(b, 8 * k, 8 * n);
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        mma<T>(o[mt][n], a[mt], b[0], b[1]);
        mma<T>(o[mt][n + 1], a[mt], b[2], b[3]);
      }
    }
  }
}

/// Writes factor[mt][half] * x to the rows from `first` on; this lane holds rows g + 8 half of each 16.
template <typename T, int D, int MT>
__device__ void store_rows(const HeadRows<T>& to, int first, const Accumulators<MT, D / 8>& x,
                           const float (&factor)[MT][2]) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * mt + 8 * half + lane_row();
      if (row >= to.count) continue;
      T* const out = to.data + row * to.stride + 2 * lane_pair();
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        if (8 * n >= to.channels) break;
        const float f = factor[mt][half];
        *reinterpret_cast<uint32_t*>(out + 8 * n) =
            round_pair<T>(f * x[mt][n][2 * half], f * x[mt][n][2 * half + 1]);
      }
    }
  }
}

template <int MT>
__device__ void fill(float (&factor)[MT][2], float x) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) factor[mt][0] = factor[mt][1] = x;
}

/// Scores in base 2: s * scale + bias, of which `window` begins at this lane's distance for the last row and
/// the first key of the warp's [16 MT, 8 NT]. Elements of one distance share a load.
template <int MT, int NT>
__device__ void add_bias(Accumulators<MT, NT>& s, float scale, const float* window) {
#pragma unroll
  for (int k = 0; k < NT + 2 * MT - 1; ++k) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float bias = window[8 * k + c] * static_cast<float>(log2_e);
#pragma unroll
      for (int r = 0; r < 2 * MT; ++r) {  // 8-row r of the warp
        const int n = k - (2 * MT - 1) + r;
        if (n < 0 || n >= NT) continue;
        float& x = s[r / 2][n][r % 2 * 2 + c];
        x = fmaf(x, scale, bias);
      }
    }
  }
}

/// s -> c tanh(scale s / c), by 1 - 2 / (1 + exp(2 x)).
template <int MT, int NT>
__device__ void soft_cap(Accumulators<MT, NT>& s, float scale, float cap) {
  const float exponent = 2.0f * static_cast<float>(log2_e) * scale / cap;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[mt][n][i];
        x = fmaf(-2.0f * cap, fast_rcp(1.0f + fast_exp2(x * exponent)), cap);
      }
    }
  }
}

/// Derivative of the cap where it gave z; hidden scores, -inf, give 0.
__device__ inline float soft_cap_slope(float z, float cap) {
  const float share = fmaxf(z, -cap) / cap;
  return fmaf(-share, share, 1.0f);
}

/// This lane's queries of a warp, row g + 8 half of each 16: the keys that they see and their first draws.
template <int MT>
struct LaneQueries {
  KeyRange range[MT][2];
  uint64_t start[MT][2];

  /// Rows beyond the last query repeat it.
  __device__ LaneQueries(const FusedAttentionArgs& args, int batch, int head, int first) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(first + 16 * mt + 8 * half + lane_row(), args.mask.queries - 1);
        range[mt][half] = range_of(args, batch, query);
        start[mt][half] = args.dropout.threshold > 0
                              ? args.dropout.row_start(score_row(args, batch, head, query))
                              : uint64_t{0};
      }
    }
  }
  /// Row of a query in [batch, heads, queries].
  __device__ static int64_t score_row(const FusedAttentionArgs& args, int batch, int head, int query) {
    return (static_cast<int64_t>(batch) * args.heads + head) * args.mask.queries + query;
  }
  __device__ static KeyRange range_of(const FusedAttentionArgs& args, int batch, int query) {
    if (args.ranges == nullptr) return key_range(args.mask, batch, query);
    return args.ranges[static_cast<int64_t>(batch) * args.mask.queries + query];
  }
  /// Whether each of these rows sees all keys first ... first + count - 1.
  __device__ bool see_all(int first, int count) const {
    return first >= range[MT - 1][1].begin && first + count <= range[0][0].end;
  }
  /// The keys that any row of the warp sees.
  __device__ KeyRange of_warp() const {
    return {__shfl_sync(0xFFFFFFFFu, range[0][0].begin, 0),
            __shfl_sync(0xFFFFFFFFu, range[MT - 1][1].end, 31)};
  }
  /// Hides the scores of other keys.
  template <int NT>
  __device__ void hide(Accumulators<MT, NT>& s, int first_key) const {
    if (see_all(first_key, 8 * NT)) return;
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + 8 * n + 2 * lane_pair() + i % 2;
          const KeyRange& seen = range[mt][i / 2];
          if (key < seen.begin || key >= seen.end) s[mt][n][i] = -INFINITY;
        }
      }
    }
  }
};

/// Calls f(mt, n, i, kept) for each of this lane's elements; first_key is a multiple of 32.
template <int MT, int NT, typename F>
__device__ void for_each_kept(const ScoreDropout& dropout, const LaneQueries<MT>& queries, int first_key,
                              F&& f) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < NT / 4; ++block) {
        const PhiloxWords words =
            dropout.words(queries.start[mt][half], first_key / 8 + 4 * block + lane_pair());
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          f(mt, 4 * block + i / 2, 2 * half + i % 2, dropout.keeps(words.word[i / 2], i % 2));
        }
      }
    }
  }
}

template <typename Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "shared memory of attention");
}

/// Calls f with the kernel's compile-time choices: value type, head width, dropout, bias.
template <typename F>
void with_fused_attention(const FusedAttentionArgs& args, F&& f) {
  const auto with_features = [&]<typename T, int D>(T, std::integral_constant<int, D> width) {
    const bool drops = args.dropout.threshold > 0;
    if (args.bias == nullptr) {
      f(T{}, width, std::bool_constant<true>{}, std::bool_constant<false>{});
    } else if (drops) {
      f(T{}, width, std::bool_constant<true>{}, std::bool_constant<true>{});
    } else {
      f(T{}, width, std::bool_constant<false>{}, std::bool_constant<true>{});
    }
  };
  const auto with_width = [&]<typename T>(T zero) {
    if (args.channels <= 64) {
      with_features(zero, std::integral_constant<int, 64>{});
    } else {
      with_features(zero, std::integral_constant<int, 128>{});
    }
  };
  if (args.dtype == Dtype::bf16) {
    with_width(__nv_bfloat16{});
  } else {
    with_width(__half{});
  }
}

}  // namespace teratron::cuda
