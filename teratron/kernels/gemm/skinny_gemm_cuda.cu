// A block computes 16 columns of the output, of all rows: 16 rows of w are the first operand of the tensor
// cores, up to 8 * tiles rows of x the second. Its warps take turns in chunks of k, and their sums are added
// in shared memory. Each element of w is read once, in 16 bytes per thread; the order of k within a chunk is
// permuted in both operands so that these are fragments as they come.
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

/// Fragments of a chunk: two steps of 32 columns, of which a thread has 8 neighbors of two rows.
struct WeightChunk {
  uint4 low[2], high[2];  // rows lane / 4 and lane / 4 + 8 of the tile
};

/// The rows of w of a thread: an activation with a gate needs 8 rows of the gate and the same 8 of up.
struct WeightRows {
  const char *low, *high;  // at the thread's columns of chunk 0
  int column;              // of the thread in a chunk

  __device__ WeightRows(const SkinnyGemmArgs& args, int64_t first, int64_t second, int64_t limit) {
    const int lane = threadIdx.x % 32, group = lane / 4;
    column = lane % 4 * 8;
    const auto row = [&](int64_t begin, int64_t end) {
      const int64_t r = begin + group < end ? begin + group : end - 1;  // rows beyond the end are not stored
      return static_cast<const char*>(args.w) + 2 * (r * args.k + column);
    };
    low = row(first, limit);
    high = row(second, args.n);
  }
  __device__ void load(int64_t k, int64_t k_end, WeightChunk& to) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int64_t at = k + 32 * step;
      const bool inside = at + column < k_end;
      to.low[step] = inside ? load_weight(low + 2 * at) : uint4{};
      to.high[step] = inside ? load_weight(high + 2 * at) : uint4{};
    }
  }
};

template <typename T, int tiles>
__device__ void multiply_chunk(const SkinnyGemmArgs& args, int64_t k, const WeightChunk& w,
                               float (&sum)[tiles][4]) {
  const int lane = threadIdx.x % 32, column = lane % 4 * 8;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int64_t at = k + 32 * step + column;
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const int64_t token = t * token_tile + lane / 4;
      uint4 x{};
      if (token < args.rows && at < args.k)
        x = *reinterpret_cast<const uint4*>(static_cast<const char*>(args.x) + 2 * (token * args.k + at));
      const uint4 &low = w.low[step], &high = w.high[step];
      multiply<T>(sum[t], {low.x, high.x, low.y, high.y}, {x.x, x.y});
      multiply<T>(sum[t], {low.z, high.z, low.w, high.w}, {x.z, x.w});
    }
  }
}

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

/// Adds the sums of all warps and stores the results. A value of register i of lane l is of row
/// l / 4 + 8 (i / 2) of the tile and of token 2 (l % 4) + i % 2.
template <typename T, typename Finish, int tiles>
__device__ void store_sums(const SkinnyGemmArgs& args, const float (&sum)[tiles][4], int64_t first) {
  extern __shared__ float parts[];  // [warps][tiles * 4][32]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < tiles * 4; ++i) parts[(warp * tiles * 4 + i) * 32 + lane] = sum[i / 4][i % 4];
  __syncthreads();
  const int64_t width = Finish::gated ? args.n / 2 : args.n;
  const auto total = [&](int i, int of_lane) {
    float all = 0.0f;
    for (int w = 0; w < warps; ++w) all += parts[(w * tiles * 4 + i) * 32 + of_lane];
    return all;
  };
  for (int slot = threadIdx.x; slot < tiles * 128; slot += blockDim.x) {
    const int i = slot / 32, of_lane = slot % 32;
    const int64_t token = i / 4 * token_tile + 2 * (of_lane % 4) + i % 2;
    const int64_t column = first + of_lane / 4 + (Finish::gated ? 0 : i % 4 / 2 * half_tile);
    if (token >= args.rows || column >= width || (Finish::gated && i % 4 >= 2)) continue;
    const float up = Finish::gated ? total(i + 2, of_lane) : 0.0f;
    static_cast<T*>(args.out)[token * width + column] =
        Finish::template finish<T>(args, token, column, total(i, of_lane), up);
  }
}

/// `depth` chunks of a warp are in flight.
template <typename T, typename Finish, int tiles, int depth>
__global__ void __launch_bounds__(512) skinny_gemm_kernel(SkinnyGemmArgs args) {
  const int64_t first = blockIdx.x * int64_t{Finish::gated ? half_tile : tile};
  const WeightRows rows(args, first, Finish::gated ? args.n / 2 + first : first + half_tile,
                        Finish::gated ? args.n / 2 : args.n);
  const int64_t stride = blockDim.x / 32 * chunk;  // from a chunk of the warp to its next
  int64_t k = threadIdx.x / 32 * chunk;
  float sum[tiles][4] = {};
  WeightChunk w[depth];
  const auto load = [&] {
#pragma unroll
    for (int d = 0; d < depth; ++d) rows.load(k + d * stride, args.k, w[d]);
  };
  load();
  wait_for_predecessor();
  release_successor();
  while (true) {
#pragma unroll
    for (int d = 0; d < depth; ++d) multiply_chunk<T, tiles>(args, k + d * stride, w[d], sum);
    k += depth * stride;
    if (k >= args.k) break;
    load();
  }
  store_sums<T, Finish, tiles>(args, sum, first);
}

/// Depends on the weight alone, so that a row's sums do not depend on the number of rows.
int warps_of(const SkinnyGemmArgs& args) {
  const int64_t chunks = ceil_div(args.k, chunk);
  const int64_t most = ceil_div(args.n, tile) < sm_count() ? 16 : 8;
  return static_cast<int>(chunks < most ? chunks : most);
}

template <typename T, typename Finish, int tiles>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  const int warps = warps_of(args);
  const int64_t blocks = Finish::gated ? ceil_div(args.n / 2, half_tile) : ceil_div(args.n, tile);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(static_cast<unsigned>(32 * warps)),
                          .shared_bytes = warps * tiles * 128 * static_cast<int>(sizeof(float))};
  const bool deep = args.k >= 4 * chunk * warps;
  launch_dependent(deep ? skinny_gemm_kernel<T, Finish, tiles, 4> : skinny_gemm_kernel<T, Finish, tiles, 2>,
                   shape, stream, args);
}

template <typename T, typename Finish>
void launch(const SkinnyGemmArgs& args, cudaStream_t stream) {
  if (args.rows <= token_tile) return launch<T, Finish, 1>(args, stream);
  launch<T, Finish, 2>(args, stream);
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
