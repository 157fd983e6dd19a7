// The blocks of a cluster compute 16 * row_tiles columns of the output, of all rows: rows of w are the first
// operand of the tensor cores, up to 8 * token_tiles rows of x the second. Their warps take turns in chunks
// of k; the sums of the warps of a block are added in shared memory, those of the blocks in that of the
// cluster. Each element of w is read once, in 16 bytes per thread; the order of k within a chunk is permuted
// in both operands so that these are fragments as they come. More row tiles read x less often.
#include <algorithm>

#include "teratron/kernels/common/cluster.cuh"
#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/gemm/launchers.h"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda {
namespace {

constexpr int tile = 16, half_tile = 8;
constexpr int chunk = 64;  // of k, of a warp
constexpr int token_tile = 8;

/// c [16, 8] += a [16, 16] b [8, 16]^T
template <typename T>
__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// A weight: read once, so it needs no place in L1. Volatile: the loads stay before the wait.
__device__ uint4 load_weight(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

/// Fragments of a chunk: two steps of 32 columns, of which a thread has 8 neighbors of two rows per tile.
template <int row_tiles>
struct WeightChunk {
  uint4 low[row_tiles][2], high[row_tiles][2];  // rows lane / 4 and lane / 4 + 8 of the tile
};
template <int token_tiles>
struct TokenChunk {
  uint4 x[token_tiles][2];  // token lane / 4 of the tile
};

/// The rows of w of a thread: a tile of an activation with a gate has 8 rows of the gate and the same 8 of
/// up.
template <bool gated, int row_tiles>
struct WeightRows {
  const char *low[row_tiles], *high[row_tiles];  // at the thread's columns of chunk 0

  __device__ WeightRows(const SkinnyGemmArgs& args, int64_t first) {
    const int lane = threadIdx.x % 32, group = lane / 4;
    const int64_t gates = gated ? args.n / 2 : args.n;
    const auto row = [&](int64_t begin, int64_t end) {
      const int64_t r = begin + group < end ? begin + group : end - 1;  // rows beyond the end are not stored
      return static_cast<const char*>(args.w) + 2 * (r * args.k + lane % 4 * 8);
    };
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
      const int64_t begin = first + t * (gated ? half_tile : tile);
      low[t] = row(begin, gates);
      high[t] = row(gated ? gates + begin : begin + half_tile, args.n);
    }
  }
  __device__ void load(int64_t k, int64_t k_end, WeightChunk<row_tiles>& to) const {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int64_t at = k + 32 * step;
        const bool inside = at + threadIdx.x % 4 * 8 < k_end;
        to.low[t][step] = inside ? load_weight(low[t] + 2 * at) : uint4{};
        to.high[t][step] = inside ? load_weight(high[t] + 2 * at) : uint4{};
      }
    }
  }
};

template <int token_tiles>
__device__ TokenChunk<token_tiles> load_tokens(const SkinnyGemmArgs& args, int64_t k) {
  const int lane = threadIdx.x % 32;
  TokenChunk<token_tiles> to;
#pragma unroll
  for (int t = 0; t < token_tiles; ++t) {
    const int64_t token = t * token_tile + lane / 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int64_t at = k + 32 * step + lane % 4 * 8;
      const bool inside = token < args.rows && at < args.k;
      const char* const from = static_cast<const char*>(args.x) + 2 * (token * args.k + at);
      to.x[t][step] = inside ? *reinterpret_cast<const uint4*>(from) : uint4{};
    }
  }
  return to;
}

template <int row_tiles, int token_tiles>
struct Sums {
  float of[row_tiles][token_tiles][4] = {};

  template <typename T>
  __device__ void add(const WeightChunk<row_tiles>& w, const TokenChunk<token_tiles>& tokens) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        const uint4 &low = w.low[r][step], &high = w.high[r][step];
#pragma unroll
        for (int t = 0; t < token_tiles; ++t) {
          const uint4& x = tokens.x[t][step];
          multiply<T>(of[r][t], {low.x, high.x, low.y, high.y}, {x.x, x.y});
          multiply<T>(of[r][t], {low.z, high.z, low.w, high.w}, {x.z, x.w});
        }
      }
    }
  }
};

/// One element of the output from the sums of its columns of w.
template <typename T, Activation kind>
__device__ T finish_activated(const SkinnyGemmArgs& args, int64_t column, float z, float up) {
  const auto add_bias = [&](float sum, int64_t at) {
    if (args.bias) sum += widen(static_cast<const T*>(args.bias)[at]);
    return widen(round_to<T>(sum));  // as if z were stored
  };
  z = add_bias(z, column);
  if constexpr (gated_kind<kind>) up = add_bias(up, column + args.n / 2);
  return round_to<T>(output_of<kind>(z, up, gate_of<kind>(z)));
}

template <typename T>
__device__ T finish_linear(const SkinnyGemmArgs& args, int64_t token, int64_t column, float sum) {
  if (args.bias) sum += widen(static_cast<const T*>(args.bias)[column]);
  if (args.addend) sum += widen(static_cast<const T*>(args.addend)[token * args.n + column]);
  return round_to<T>(sum);
}

/// What follows the product.
struct Linear {
  static constexpr bool gated = false;
  template <typename T>
  __device__ static T finish(const SkinnyGemmArgs& args, int64_t token, int64_t column, float sum, float) {
    return finish_linear<T>(args, token, column, sum);
  }
};
template <Activation kind>
struct Activated {
  static constexpr bool gated = gated_kind<kind>;
  template <typename T>
  __device__ static T finish(const SkinnyGemmArgs& args, int64_t, int64_t column, float z, float up) {
    return finish_activated<T, kind>(args, column, z, up);
  }
};

/// Adds the sums of all warps and stores the results. Value i of lane l of a pair of tiles is of row l / 4 +
/// 8 (i / 2) of the one and of token 2 (l % 4) + i % 2 of the other. A block of a cluster stores a part.
template <typename T, typename Finish, int row_tiles, int token_tiles>
__device__ void store_sums(const SkinnyGemmArgs& args, const Sums<row_tiles, token_tiles>& sums,
                           int64_t first) {
  constexpr int values = row_tiles * token_tiles * 4, slots = values * 32;
  extern __shared__ float parts[];  // [warps][slots], then the block's sums
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < values; ++i)
    parts[warp * slots + i * 32 + lane] = sums.of[i / 4 / token_tiles][i / 4 % token_tiles][i % 4];
  __syncthreads();
  float* const block = parts + warps * slots;
  for (int slot = threadIdx.x; slot < slots; slot += blockDim.x) {
    float all = 0.0f;
    for (int w = 0; w < warps; ++w) all += parts[w * slots + slot];
    block[slot] = all;
  }
  const int splits = args.splits;
  splits > 1 ? cluster_sync() : __syncthreads();
  const auto total = [&](int slot) {
    if (splits == 1) return block[slot];
    float all = 0.0f;
    for (int rank = 0; rank < splits; ++rank) all += read_of_block(block + slot, rank);
    return all;
  };
  const int64_t width = Finish::gated ? args.n / 2 : args.n;
  const int split = static_cast<int>(blockIdx.x % splits);
  for (int slot = split * blockDim.x + threadIdx.x; slot < slots; slot += splits * blockDim.x) {
    const int value = slot / 32 % 4, pair = slot / 128, of_lane = slot % 32;
    const int64_t token = pair % token_tiles * token_tile + 2 * (of_lane % 4) + value % 2;
    const int64_t column = first + pair / token_tiles * (Finish::gated ? half_tile : tile) + of_lane / 4 +
                           (Finish::gated ? 0 : value / 2 * half_tile);
    if (token >= args.rows || column >= width || (Finish::gated && value >= 2)) continue;
    const float up = Finish::gated ? total(slot + 64) : 0.0f;
    static_cast<T*>(args.out)[token * width + column] =
        Finish::template finish<T>(args, token, column, total(slot), up);
  }
  if (splits > 1) cluster_sync();  // a block that has ended cannot be read
}

/// Tiles of a block, and its chunks in flight per warp.
template <int rows, int tokens, int chunks>
struct Shape {
  static constexpr int row_tiles = rows, token_tiles = tokens, depth = chunks;
  static constexpr int max_threads = rows == 1 ? 512 : 256;
};

template <typename T, typename Finish, typename S>
__global__ void __launch_bounds__(S::max_threads) skinny_gemm_kernel(SkinnyGemmArgs args) {
  constexpr int depth = S::depth, token_tiles = S::token_tiles;
  constexpr bool keeps_tokens = token_tiles == 1;  // in flight as weights are
  const int64_t first = blockIdx.x / args.splits * int64_t{S::row_tiles * (Finish::gated ? half_tile : tile)};
  const WeightRows<Finish::gated, S::row_tiles> rows(args, first);
  const int warps = blockDim.x / 32;
  const int64_t stride = warps * args.splits * chunk;  // from a chunk of the warp to its next
  const int64_t begin = (blockIdx.x % args.splits * warps + threadIdx.x / 32) * chunk;
  Sums<S::row_tiles, token_tiles> sums;
  WeightChunk<S::row_tiles> w[depth];
  TokenChunk<token_tiles> x[keeps_tokens ? depth : 1];
#pragma unroll
  for (int d = 0; d < depth; ++d) rows.load(begin + d * stride, args.k, w[d]);
  wait_for_predecessor();
  release_successor();
#pragma unroll
  for (int d = 0; d < depth; ++d) {
    if constexpr (keeps_tokens) x[d] = load_tokens<token_tiles>(args, begin + d * stride);
  }
  for (int64_t k = begin; k < args.k; k += depth * stride) {
#pragma unroll
    for (int d = 0; d < depth; ++d) {
      const int64_t next = k + (d + depth) * stride;
      if constexpr (!keeps_tokens) x[0] = load_tokens<token_tiles>(args, k + d * stride);
      sums.template add<T>(w[d], x[keeps_tokens ? d : 0]);
      rows.load(next, args.k, w[d]);
      if constexpr (keeps_tokens) x[d] = load_tokens<token_tiles>(args, next);
    }
  }
  store_sums<T, Finish>(args, sums, first);
}

template <typename T, typename Finish, typename S>
void launch_shape(SkinnyGemmArgs args, cudaStream_t stream) {
  constexpr int most_warps = S::max_threads / 32, slots = S::row_tiles * S::token_tiles * 128;
  const int64_t columns = S::row_tiles * (Finish::gated ? half_tile : tile);
  const int64_t tiles = ceil_div(Finish::gated ? args.n / 2 : args.n, columns);
  const int64_t chunks = ceil_div(args.k, chunk);
  // Two blocks for each SM, but not fewer than 4 chunks for each.
  args.splits = 1;
  while (args.splits < 4 && tiles * args.splits < sm_count() && chunks >= 8 * args.splits &&
         compute_capability_major() >= 9)
    args.splits *= 2;
  // As few chunks per warp as possible, with an equal number for each.
  const int64_t most = tiles * args.splits <= 2 * sm_count() ? most_warps : std::min(most_warps, 8);
  const int64_t own_chunks = ceil_div(chunks, args.splits);
  const int warps = static_cast<int>(ceil_div(own_chunks, ceil_div(own_chunks, most)));
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(tiles * args.splits)),
                          .block = dim3(static_cast<unsigned>(32 * warps)),
                          .shared_bytes = (warps + 1) * slots * static_cast<int>(sizeof(float)),
                          .cluster = args.splits};
  const auto kernel = skinny_gemm_kernel<T, Finish, S>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  launch_dependent(kernel, shape, stream, args);
}

template <typename T, typename Finish>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  const bool is_long = args.k >= 2048;  // chunks for more in flight
  if (is_long) return launch_shape<T, Finish, Shape<1, 1, 3>>(args, stream);
  launch_shape<T, Finish, Shape<1, 1, 2>>(args, stream);
}

template <typename T>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  if (!args.activated) return launch<T, Linear>(args, stream);
  switch (args.activation) {
    case Activation::gelu:
      return launch<T, Activated<Activation::gelu>>(args, stream);
    case Activation::gelu_erf:
      return launch<T, Activated<Activation::gelu_erf>>(args, stream);
    case Activation::squared_relu:
      return launch<T, Activated<Activation::squared_relu>>(args, stream);
    case Activation::relu:
      return launch<T, Activated<Activation::relu>>(args, stream);
    case Activation::silu:
      return launch<T, Activated<Activation::silu>>(args, stream);
    case Activation::swiglu:
      return launch<T, Activated<Activation::swiglu>>(args, stream);
    case Activation::geglu:
      return launch<T, Activated<Activation::geglu>>(args, stream);
  }
}

}  // namespace

bool has_skinny_gemm(int64_t rows) {
  return rows <= skinny_gemm_rows && compute_capability_major() >= 8;
}

void skinny_gemm(const SkinnyGemmArgs& args, CUstream_st* stream) {
  if (args.dtype == Dtype::bf16) {
    launch<__nv_bfloat16>(args, stream);
  } else {
    launch<__half>(args, stream);
  }
  check_launch("skinny_gemm");
}

}  // namespace teratron::cuda
