// A GEMM of up to 8 rows, limited by the reading of w. Rows of w are the first operand of the tensor cores
// (mma.cuh), the rows of x, padded to 8, the second. Blocks loop over tiles of 16 columns of the output;
// their warps take turns in chunks of k, and the sums of the warps are added in shared memory. Each element
// of w is read once, in 16 bytes per thread; the order of k within a chunk is permuted in both operands so
// that these are fragments as they come. The next chunks, of the next tile after the last of this one, are
// always in flight; the first are read before the kernel waits for its predecessor, which computes x.
//
// x may be normalized first (norm.h): by each block, in shared memory, beside the reading of w.
//
// Bytes: w is read once. One row of Llama-3-8B on an H100: 2,727 GB/s, where a copy runs at 3,020.
#include <algorithm>

#include "teratron/kernels/common/dependent_launch.cuh"
#include "teratron/kernels/common/mma.cuh"
#include "teratron/kernels/common/predicated_load.cuh"
#include "teratron/kernels/gemm/launchers.h"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda {
namespace {

constexpr int tile = 16, half_tile = 8;
constexpr int chunk = 64;   // of k, of a warp
constexpr int slots = 128;  // sums of a tile: 16 columns of 8 rows
constexpr int most_warps = 16, least_warps = slots / 32;
constexpr int row_padding = 32;  // of a normalized row, so that 8 rows are in different banks

/// Chunks of a warp in flight, and what limits its registers. `Deep` blocks fill an SM: for several rows, and
/// for few tiles with a long k, where all of w is in flight at once. One row is fastest in two blocks per SM.
template <int chunks, int threads, int blocks>
struct Variant {
  static constexpr int depth = chunks, max_threads = threads, blocks_per_sm = blocks;
};
using Streaming = Variant<4, 256, 2>;
using Deep = Variant<4, 32 * most_warps, 1>;

/// Fragments of a chunk: two steps of 32 columns, of which a thread has 8 neighbors of two rows.
struct WeightChunk {
  uint4 low[2], high[2];  // rows g and g + 8 of the tile
};
struct TokenChunk {
  uint4 x[2];  // of row g of x
};

__device__ int lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
/// The thread's first column of a chunk.
__device__ int lane_column() {
  return lane() % 4 * 8;
}

/// The rows of w of a thread: a tile of an activation with a gate has 8 rows of the gate and the same 8 of
/// up.
template <bool gated>
struct WeightRows {
  static constexpr int columns = gated ? half_tile : tile;  // of the output, of a tile
  const char *low, *high;                                   // at the thread's columns of chunk 0
  int k_end;                                                // 0: there is no such tile

  __device__ WeightRows(const SkinnyGemmArgs& args, int64_t index) {
    const int64_t first = index * columns, gates = gated ? args.n / 2 : args.n;
    k_end = first < gates ? static_cast<int>(args.k) : 0;
    const auto row = [&](int64_t begin, int64_t end) {
      const int64_t r = min(begin + lane() / 4, end - 1);  // rows beyond the end are not stored
      return static_cast<const char*>(args.w) + 2 * (r * args.k + lane_column());
    };
    low = row(first, gates);
    high = row(gated ? gates + first : first + half_tile, args.n);
  }
  __device__ void load(int k, WeightChunk& to) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = k + 32 * step;
      const bool inside = at + lane_column() < k_end;
      to.low[step] = load_once_or_zero(low + 2 * static_cast<int64_t>(at), inside);
      to.high[step] = load_once_or_zero(high + 2 * static_cast<int64_t>(at), inside);
    }
  }
};

/// x as it is, from device memory.
struct PlainTokens {
  const char* row;  // the thread's
  int k_end;

  __device__ PlainTokens(const SkinnyGemmArgs& args, unsigned char*)
      : row(static_cast<const char*>(args.x) + 2 * (lane() / 4 * args.k)),
        k_end(lane() / 4 < args.rows ? static_cast<int>(args.k) : 0) {}
  __device__ void prefetch() {}
  __device__ void prepare() {}
  __device__ TokenChunk load_chunk(int k) const {
    TokenChunk to;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = k + 32 * step + lane_column();
      to.x[step] = at < k_end ? *reinterpret_cast<const uint4*>(row + 2 * static_cast<int64_t>(at)) : uint4{};
    }
    return to;
  }
};

/// norm(x), in shared memory: T gain [k], shift [k], x [rows, k + row_padding]. A thread has the same columns
/// of all rows.
template <typename T>
struct NormedTokens {
  static constexpr int V = 8;
  using P = Pack<T, V>;
  const SkinnyGemmArgs& args;
  T *const gain, *const shift, *const x;

  __device__ NormedTokens(const SkinnyGemmArgs& a, unsigned char* shared)
      : args(a), gain(reinterpret_cast<T*>(shared)), shift(gain + a.k), x(shift + a.k) {}
  __device__ T* row(int r) const { return x + r * (static_cast<int>(args.k) + row_padding); }

  /// f(column) of each pack of the thread.
  template <typename F>
  __device__ void for_columns(F f) const {
    for (int c = static_cast<int>(threadIdx.x) * V; c < args.k; c += static_cast<int>(blockDim.x) * V) f(c);
  }
  /// The gain and shift, which no kernel writes.
  __device__ void prefetch() {
    for_columns([&](int c) {
      cp_async(shared_address(gain + c), static_cast<const T*>(args.norm.weight) + c);
      if (args.norm.bias) cp_async(shared_address(shift + c), static_cast<const T*>(args.norm.bias) + c);
    });
  }
  /// The sum of term(h - mean) over each row, as the parts of all warps.
  template <typename Mean, typename Term>
  __device__ void sum_rows(float (&parts)[skinny_gemm_rows][most_warps], Mean mean_of, Term term) const {
    for (int r = 0; r < args.rows; ++r) {
      const float mean = mean_of(r);
      float sum = 0.0f;
      for_columns([&](int c) {
        float h[V];
        widen(load<V>(row(r) + c), h);
#pragma unroll
        for (int i = 0; i < V; ++i) sum += term(h[i] - mean);
      });
      sum = warp_sum(sum);
      if (lane() == 0) parts[r][threadIdx.x / 32] = sum;
    }
    __syncthreads();
  }
  __device__ float average(const float (&parts)[most_warps]) const {
    float sum = 0.0f;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += parts[w];
    return sum / static_cast<float>(args.k);
  }
  __device__ void prepare() {
    __shared__ float sums[skinny_gemm_rows][most_warps], squares[skinny_gemm_rows][most_warps];
    for (int r = 0; r < args.rows; ++r) {
      for_columns([&](int c) {
        cp_async(shared_address(row(r) + c), static_cast<const T*>(args.x) + r * args.k + c);
      });
    }
    cp_async_commit();
    cp_async_wait<0>();
    if (!args.norm.rms) sum_rows(sums, [](int) { return 0.0f; }, [](float h) { return h; });
    const auto mean = [&](int r) { return args.norm.rms ? 0.0f : average(sums[r]); };
    sum_rows(squares, mean, [](float h) { return h * h; });
    for (int r = 0; r < args.rows; ++r) {
      const float center = mean(r), rstd = rsqrtf(average(squares[r]) + args.norm.eps);
      for_columns([&](int c) { normalize(row(r) + c, c, center, rstd); });
    }
    __syncthreads();
  }
  __device__ void normalize(T* pack, int c, float mean, float rstd) const {
    float h[V], g[V], s[V] = {};
    widen(load<V>(pack), h);
    widen(load<V>(gain + c), g);
    if (args.norm.bias) widen(load<V>(shift + c), s);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float w = args.norm.zero_centered ? 1.0f + g[i] : g[i];
      h[i] = (h[i] - mean) * rstd * w + s[i];
    }
    *reinterpret_cast<P*>(pack) = round_to_pack<T>(h);
  }
  __device__ TokenChunk load_chunk(int k) const {
    TokenChunk to;
    const int own = lane() / 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = k + 32 * step + lane_column();
      to.x[step] = own < args.rows && at < args.k ? *reinterpret_cast<const uint4*>(row(own) + at) : uint4{};
    }
    return to;
  }
};

/// The sums of a warp: C of mma.cuh.
struct Sums {
  float of[4] = {};

  template <typename T>
  __device__ void add(const WeightChunk& w, const TokenChunk& tokens) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint4 &low = w.low[step], &high = w.high[step], &x = tokens.x[step];
      mma<T>(of, {low.x, high.x, low.y, high.y}, x.x, x.y);
      mma<T>(of, {low.z, high.z, low.w, high.w}, x.z, x.w);
    }
  }
};

template <typename T>
__device__ float value_or_zero(const void* values, int64_t at) {
  return values ? widen(static_cast<const T*>(values)[at]) : 0.0f;
}

/// What follows the product, at one element of the output; what it reads is read beside the product.
template <typename T>
struct Linear {
  static constexpr bool gated = false;
  float addend;

  __device__ Linear(const SkinnyGemmArgs& args, int64_t token, int64_t column)
      : addend(value_or_zero<T>(args.bias, column) + value_or_zero<T>(args.addend, token * args.n + column)) {
  }
  __device__ T finish(float sum, float) const { return round_to<T>(sum + addend); }
};
template <typename T, Activation kind>
struct Activated {
  static constexpr bool gated = gated_kind<kind>;
  float bias, up_bias = 0.0f;

  __device__ Activated(const SkinnyGemmArgs& args, int64_t, int64_t column)
      : bias(value_or_zero<T>(args.bias, column)) {
    if constexpr (gated) up_bias = value_or_zero<T>(args.bias, column + args.n / 2);
  }
  __device__ T finish(float sum, float up) const {
    const auto rounded = [](float x) { return widen(round_to<T>(x)); };  // as if z were stored
    const float z = rounded(sum + bias);
    return round_to<T>(output_of<kind>(z, gated ? rounded(up + up_bias) : 0.0f, gate_of<kind>(z)));
  }
};

/// Where a thread's sum of a tile goes: value i of a lane is of column g + 8 (i / 2) and row 2 t + i % 2; the
/// values 2 and 3 of a gated tile are the up of the values 0 and 1.
template <typename Finish>
struct Destination {
  int64_t token, column;
  bool exists;

  __device__ Destination(const SkinnyGemmArgs& args, int64_t index) {
    const int value = static_cast<int>(threadIdx.x) / 32;
    token = 2 * (lane() % 4) + value % 2;
    column = index * WeightRows<Finish::gated>::columns + lane() / 4 + value / 2 * half_tile;
    exists = value < (Finish::gated ? 2 : 4) && token < args.rows && column < width(args);
  }
  __device__ static int64_t width(const SkinnyGemmArgs& args) { return Finish::gated ? args.n / 2 : args.n; }
};

/// Adds the sums of all warps; value i of lane l is slot 32 i + l. `parts` is free again once the next tile's
/// are complete.
__device__ void share_sums(const Sums& sums, float (&parts)[most_warps][slots]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[threadIdx.x / 32][32 * i + lane()] = sums.of[i];
  __syncthreads();
}
__device__ float total(const float (&parts)[most_warps][slots], int slot) {
  float all = 0.0f;
#pragma unroll 4
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) all += parts[w][slot];
  return all;
}

template <typename T, typename Finish, typename Tokens, typename V>
__global__ void __launch_bounds__(V::max_threads, V::blocks_per_sm)
    skinny_gemm_kernel(const __grid_constant__ SkinnyGemmArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float parts[2][most_warps][slots];
  using Rows = WeightRows<Finish::gated>;
  Rows rows(args, blockIdx.x);
  Tokens tokens(args, shared);
  const int begin = static_cast<int>(threadIdx.x) / 32 * chunk,
            stride = static_cast<int>(blockDim.x) / 32 * chunk;
  WeightChunk w[V::depth];
#pragma unroll
  for (int d = 0; d < V::depth; ++d) rows.load(begin + d * stride, w[d]);
  tokens.prefetch();
  wait_for_predecessor();
  release_successor();
  tokens.prepare();
  const int64_t width = Destination<Finish>::width(args);
  int buffer = 0;
  for (int64_t index = blockIdx.x; index * Rows::columns < width; index += gridDim.x, buffer ^= 1) {
    const Destination<Finish> to(args, index);
    const Finish finish(args, to.exists ? to.token : 0, to.exists ? to.column : 0);
    Sums sums;
    for (int k = begin; k - begin < args.k; k += V::depth * stride) {
      int next = k + V::depth * stride;
      if (next - begin >= args.k) rows = Rows(args, index + gridDim.x), next = begin;
      TokenChunk x[V::depth];
#pragma unroll
      for (int d = 0; d < V::depth; ++d) x[d] = tokens.load_chunk(k + d * stride);
#pragma unroll
      for (int d = 0; d < V::depth; ++d) {
        sums.template add<T>(w[d], x[d]);
        rows.load(next + d * stride, w[d]);
      }
    }
    share_sums(sums, parts[buffer]);
    if (!to.exists) continue;
    const int slot = static_cast<int>(threadIdx.x);
    const float up = Finish::gated ? total(parts[buffer], slot + 64) : 0.0f;
    static_cast<T*>(args.out)[to.token * width + to.column] = finish.finish(total(parts[buffer], slot), up);
  }
}

int64_t tiles_of(const SkinnyGemmArgs& args, bool gated) {
  return gated ? ceil_div(args.n / 2, half_tile) : ceil_div(args.n, tile);
}

template <typename T, typename Finish, typename Tokens, typename V>
void launch_variant(const SkinnyGemmArgs& args, int shared_bytes, cudaStream_t stream) {
  const int64_t chunks = ceil_div(args.k, chunk), most = V::max_threads / 32;
  // As few rounds per tile as possible, with an equal number of chunks for each warp.
  const int64_t per_warp = ceil_div(ceil_div(chunks, most), V::depth) * V::depth;
  const auto warps = std::max<int64_t>(ceil_div(chunks, per_warp), least_warps);
  const auto blocks = std::min<int64_t>(tiles_of(args, Finish::gated), V::blocks_per_sm * sm_count());
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(static_cast<unsigned>(32 * warps)),
                          .shared_bytes = shared_bytes};
  const auto kernel = skinny_gemm_kernel<T, Finish, Tokens, V>;
  if (shared_bytes > 0)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "skinny_gemm");
  launch_dependent(kernel, shape, stream, args);
}

template <typename T, typename Finish, typename Tokens>
void launch_tokens(const SkinnyGemmArgs& args, int shared_bytes, cudaStream_t stream) {
  const bool few_tiles = tiles_of(args, Finish::gated) <= sm_count() && args.k > 16 * chunk;
  if (args.rows > 1 || few_tiles) return launch_variant<T, Finish, Tokens, Deep>(args, shared_bytes, stream);
  launch_variant<T, Finish, Tokens, Streaming>(args, shared_bytes, stream);
}

template <typename T, typename Finish>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  if (!args.norm.weight) return launch_tokens<T, Finish, PlainTokens>(args, 0, stream);
  const auto bytes = static_cast<int>(skinny_gemm_norm_bytes(args.rows, args.k));
  launch_tokens<T, Finish, NormedTokens<T>>(args, bytes, stream);
}

template <typename T>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  if (!args.activated) return launch<T, Linear<T>>(args, stream);
  switch (args.activation) {
    case Activation::gelu:
      return launch<T, Activated<T, Activation::gelu>>(args, stream);
    case Activation::gelu_erf:
      return launch<T, Activated<T, Activation::gelu_erf>>(args, stream);
    case Activation::squared_relu:
      return launch<T, Activated<T, Activation::squared_relu>>(args, stream);
    case Activation::relu:
      return launch<T, Activated<T, Activation::relu>>(args, stream);
    case Activation::silu:
      return launch<T, Activated<T, Activation::silu>>(args, stream);
    case Activation::quick_gelu:
      return launch<T, Activated<T, Activation::quick_gelu>>(args, stream);
    case Activation::swiglu:
      return launch<T, Activated<T, Activation::swiglu>>(args, stream);
    case Activation::geglu:
      return launch<T, Activated<T, Activation::geglu>>(args, stream);
  }
}

}  // namespace

bool has_skinny_gemm(int64_t rows) {
  return rows <= skinny_gemm_rows && compute_capability_major() >= 8;
}

int64_t skinny_gemm_norm_bytes(int64_t rows, int64_t k) {
  return 2 * (2 * k + rows * (k + row_padding));
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
