#include <cuda_fp8.h>

#include "teratron/kernels/device.cuh"
#include "teratron/kernels/fp8_cuda.h"

namespace teratron::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int pack = 8;                            // columns of a thread
constexpr int tile_columns = 64, tile_rows = 128;  // of a block; a thread has 4 rows by 8 columns of it
constexpr int packs = tile_columns / pack;         // 8
constexpr int quads = tile_rows / 4;               // 32
constexpr int groups = tile_rows / 16;             // 16-byte pieces of a transposed row

static_assert(packs * quads == threads);

/// Magnitudes are compared as bits: the order is that of the values, and NaN is above all.
template <typename T>
__device__ uint32_t magnitude(const Pack<T, pack>& x) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < pack; ++i) most = max(most, __float_as_uint(widen(x.v[i])) & 0x7FFFFFFFu);
  return most;
}

/// Raises *amax to the block's largest magnitude.
__device__ void raise(float* amax, uint32_t mine) {
  __shared__ uint32_t of_warp[warps];
  mine = __reduce_max_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < warps; ++i) mine = max(mine, of_warp[i]);
  auto* const bits = reinterpret_cast<unsigned*>(amax);
  // Most blocks raise nothing and need no atomic.
  if (mine > *reinterpret_cast<volatile unsigned*>(bits)) atomicMax(bits, mine);
}

struct Bytes {
  uint32_t word[2];  // 8 columns of a row
};

template <typename T>
__device__ Bytes convert(const Pack<T, pack>& x, float scale, __nv_fp8_interpretation_t kind) {
  Bytes bytes;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const float2 low{widen(x.v[4 * w]) * scale, widen(x.v[4 * w + 1]) * scale};
    const float2 high{widen(x.v[4 * w + 2]) * scale, widen(x.v[4 * w + 3]) * scale};
    const uint32_t a = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, kind);
    const uint32_t b = __nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, kind);
    bytes.word[w] = a | b << 16;
  }
  return bytes;
}

/// Four words of four bytes, transposed in place: word i gets byte i of every word.
__device__ void transpose(uint32_t (&word)[4]) {
  const uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
  const uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// A row of the tile is a column of x, its words permuted so that neither writing (one word of every pack) nor
/// reading (16 bytes) meets a bank twice.
struct Tile {
  uint32_t words[tile_columns][quads];

  __device__ void put(int column, int quad, uint32_t word) {
    words[column][quad ^ (column / pack * 4)] = word;
  }
  __device__ uint4 get(int column, int group) const {
    return *reinterpret_cast<const uint4*>(&words[column][(group * 4) ^ (column / pack * 4)]);
  }
};

__device__ void write_transposed(const Fp8CastArgs& args, const Tile& tile) {
  const int64_t first_column = blockIdx.x * int64_t{tile_columns},
                first_row = blockIdx.y * int64_t{tile_rows};
#pragma unroll
  for (int unit = threadIdx.x; unit < tile_columns * groups; unit += threads) {
    const int column = unit / groups, group = unit % groups;
    const int64_t row = first_row + group * 16;
    if (first_column + column >= args.columns || row >= args.rows) continue;
    auto* const to = static_cast<uint8_t*>(args.transposed) + (first_column + column) * args.rows + row;
    *reinterpret_cast<uint4*>(to) = tile.get(column, group);
  }
}

template <typename T, Fp8Format format>
__global__ void __launch_bounds__(threads) cast_kernel(Fp8CastArgs args) {
  constexpr auto kind = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  __shared__ alignas(16) Tile tile;
  const int mine = threadIdx.x % packs, quad = threadIdx.x / packs;
  const int64_t column = blockIdx.x * int64_t{tile_columns} + mine * pack;
  const int64_t row = blockIdx.y * int64_t{tile_rows} + quad * 4;
  uint32_t most = 0;
  if (column < args.columns && row < args.rows) {
    const int64_t place = row * args.columns + column;
    Pack<T, pack> x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = load<pack>(static_cast<const T*>(args.x) + place + r * args.columns);
    const float scale = *args.scale;
    uint32_t left[4], right[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      most = max(most, magnitude(x[r]));
      const Bytes bytes = convert(x[r], scale, kind);
      left[r] = bytes.word[0];
      right[r] = bytes.word[1];
      if (args.out != nullptr) {
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(args.out) + place + r * args.columns) =
            make_uint2(left[r], right[r]);
      }
    }
    transpose(left);
    transpose(right);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.put(mine * pack + i, quad, left[i]);
      tile.put(mine * pack + 4 + i, quad, right[i]);
    }
  }
  if (args.amax != nullptr) raise(args.amax, most);
  if (args.transposed == nullptr) return;
  __syncthreads();
  write_transposed(args, tile);
}

template <typename T>
__global__ void __launch_bounds__(threads) amax_kernel(Fp8ScaleArgs args) {
  const int64_t step = gridDim.x * int64_t{threads};
  const T* const x = static_cast<const T*>(args.x);
  uint32_t most = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.x * int64_t{threads} + threadIdx.x; i < args.count / pack; i += step) {
    most = max(most, magnitude(load<pack>(x + i * pack)));
  }
  raise(args.amax, most);
}

__global__ void scale_kernel(Fp8ScaleArgs args) {
  const float amax = *args.amax;
  const float wanted = fminf(args.largest / amax, static_cast<float>(largest_fp8_scale));
  const float scale = isfinite(amax) && amax > 0 ? wanted : 1.0F;
  *args.scale = scale;
  *args.inverse = 1.0F / scale;
}

template <typename F>
void with_source_type(Dtype dtype, F&& f) {
  if (dtype == Dtype::bf16) return f(__nv_bfloat16{});
  if (dtype == Dtype::f16) return f(__half{});
  f(float{});
}

}  // namespace

void fp8_cast(const Fp8CastArgs& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.columns, tile_columns)),
                  static_cast<unsigned>(ceil_div(args.rows, tile_rows)));
  with_source_type(args.dtype, [&]<typename T>(T) {
    const auto kernel =
        args.format == Fp8Format::e4m3 ? cast_kernel<T, Fp8Format::e4m3> : cast_kernel<T, Fp8Format::e5m2>;
    kernel<<<grid, threads, 0, stream>>>(args);
  });
  check_launch("fp8_cast");
}

void fp8_scale_of(const Fp8ScaleArgs& args, CUstream_st* stream) {
  const int64_t wanted = ceil_div(args.count / pack, threads), most = int64_t{multiprocessors()} * 16;
  const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  if (blocks > 0) {
    with_source_type(args.dtype,
                     [&]<typename T>(T) { amax_kernel<T><<<blocks, threads, 0, stream>>>(args); });
  }
  scale_kernel<<<1, 1, 0, stream>>>(args);
  check_launch("fp8_scale_of");
}

}  // namespace teratron::cuda
