// Activation with its result (or its gradient) in FP8, as rows and transposed (fp8.h):
//   y = cast(scale round(f(x))), amax = max |round(f(x))|; backward also sums dx over rows for the bias
// A block has a tile (fp8_tile.cuh). A thread has 16 bytes of four successive rows, casts them in
// registers, writes the rows, and transposes through shared memory, four rows to a word.
// Bytes: x (and dy) are read once, FP8 is written twice. One H200: SwiGLU 0.97 of a copy forward and 0.94
// backward, GELU 0.89.
#include "teratron/kernels/common/column_reduction.cuh"
#include "teratron/kernels/fp8/fp8_tile.cuh"
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = Fp8Tile::threads, pack = Fp8Tile::pack;

template <typename T, Fp8Format format, bool gated>
__global__ void __launch_bounds__(threads) forward_kernel(ActivationFp8Args args) {
  constexpr int parts = gated ? 2 : 1;  // of a row of x: gate|up
  __shared__ Fp8Tile tile;
  const int64_t width = args.shape.width;
  const Fp8Position position;
  Fp8Quad<format> quad;
  if (position.column < width && position.row < args.shape.rows) {
    const T* const from = static_cast<const T*>(args.x) + position.row * parts * width + position.column;
    Pack<T, pack> x[4][parts];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int p = 0; p < parts; ++p) x[r][p] = load<pack>(from + (r * parts + p) * width);
    }
    const float scale = *args.to.scale;
    with_kind<gated>(args.shape.activation, [&](auto kind) {
      constexpr Activation f = decltype(kind)::value;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        Pack<T, pack> y;
#pragma unroll
        for (int i = 0; i < pack; ++i) {
          const float z = widen(x[r][0].v[i]), up = widen(x[r][parts - 1].v[i]);
          y.v[i] = round_to<T>(output_of<f>(z, up, gate_of<f>(z)));
        }
        quad.set(r, y, scale);
      }
    });
    if (args.to.out != nullptr) quad.write_rows(args.to, position.row, position.column);
    quad.put(tile, position);
  }
  update_amax(args.to.amax, quad.amax);
  if (args.to.transposed == nullptr) return;
  __syncthreads();
  tile.write_transposed(args.to, position.first_column, width - position.first_column);
}

/// Column sums of this thread, if requested.
template <int parts, bool summed>
struct TileSums {
  float of[summed ? parts : 1][pack] = {};

  __device__ void add(int part, int i, float x) {
    if constexpr (summed) of[part][i] += x;
  }
  /// Reduces over the block's rows to one workspace row.
  __device__ void store(const ActivationFp8Args& args, const Fp8Position& position) {
    if constexpr (!summed) return;
    constexpr int warps = threads / 32;
    __shared__ float warp_sums[warps][parts][Fp8Tile::columns];
    // Lanes with the same columns are eight apart.
#pragma unroll
    for (int p = 0; p < parts; ++p) {
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        float sum = of[p][i];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
        if (threadIdx.x % 32 < Fp8Tile::packs) warp_sums[threadIdx.x / 32][p][position.pack * pack + i] = sum;
      }
    }
    __syncthreads();
    const int part = threadIdx.x / Fp8Tile::columns, column = threadIdx.x % Fp8Tile::columns;
    if (part >= parts || position.first_column + column >= args.shape.width) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += warp_sums[w][part][column];
    const int64_t to =
        (Fp8Tile::tile_row() * parts + part) * args.shape.width + position.first_column + column;
    static_cast<float*>(args.dbias.workspace)[to] = sum;
  }
};

template <typename T, Fp8Format format, bool gated, bool summed>
__global__ void __launch_bounds__(threads, 3) backward_kernel(ActivationFp8Args args) {
  constexpr int parts = gated ? 2 : 1;
  __shared__ Fp8Tile tiles[parts];
  const int64_t width = args.shape.width;
  const Fp8Position position;
  Fp8Quad<format> quads[parts];
  TileSums<parts, summed> sums;
  if (position.column < width && position.row < args.shape.rows) {
    const T* const from = static_cast<const T*>(args.x) + position.row * parts * width + position.column;
    const T* const gradient = static_cast<const T*>(args.dy) + position.row * width + position.column;
    Pack<T, pack> x[4][parts], dy[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int p = 0; p < parts; ++p) x[r][p] = load<pack>(from + (r * parts + p) * width);
      dy[r] = load<pack>(gradient + r * width);
    }
    const float scale = *args.to.scale;
    with_kind<gated>(args.shape.activation, [&](auto kind) {
      constexpr Activation f = decltype(kind)::value;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int i = 0; i < pack; ++i) {
          const float z = widen(x[r][0].v[i]), up = widen(x[r][parts - 1].v[i]);
          const auto dx = gradients_of<f>(widen(dy[r].v[i]), z, up, gate_of<f>(z));
          if constexpr (gated) {
            x[r][1].v[i] = round_to<T>(dx.up);
            sums.add(1, i, dx.up);
          }
          x[r][0].v[i] = round_to<T>(dx.z);
          sums.add(0, i, dx.z);
        }
#pragma unroll
        for (int p = 0; p < parts; ++p) quads[p].set(r, x[r][p], scale);
      }
    });
#pragma unroll
    for (int p = 0; p < parts; ++p) {
      if (args.to.out != nullptr) quads[p].write_rows(args.to, position.row, position.column + p * width);
      quads[p].put(tiles[p], position);
    }
  }
  update_amax(args.to.amax, max(quads[0].amax, quads[parts - 1].amax));
  sums.store(args, position);
  if (args.to.transposed == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int p = 0; p < parts; ++p) {
    tiles[p].write_transposed(args.to, position.first_column + p * width, width - position.first_column);
  }
}

/// Calls f(T{}, format, gated), the latter two as compile-time constants.
template <typename F>
void with_case(const ActivationFp8Args& args, F&& f) {
  const auto with_format = [&]<typename T, bool gated>(T type, std::bool_constant<gated> gate) {
    if (args.to.format == Fp8Format::e4m3) {
      f(type, std::integral_constant<Fp8Format, Fp8Format::e4m3>{}, gate);
    } else {
      f(type, std::integral_constant<Fp8Format, Fp8Format::e5m2>{}, gate);
    }
  };
  const auto with_gate = [&](auto type) {
    is_gated(args.shape.activation) ? with_format(type, std::true_type{})
                                    : with_format(type, std::false_type{});
  };
  args.shape.dtype == Dtype::bf16 ? with_gate(__nv_bfloat16{}) : with_gate(__half{});
}

dim3 grid_of(const ActivationShape& shape) {
  return Fp8Tile::grid(shape.rows, shape.width);
}

}  // namespace

int64_t activation_fp8_workspace_rows(const ActivationShape& shape) {
  const dim3 grid = grid_of(shape);
  return int64_t{grid.y} * grid.z;
}

void activation_forward_fp8(const ActivationFp8Args& args, CUstream_st* stream) {
  with_case(args, [&](auto type, auto format, auto gated) {
    forward_kernel<decltype(type), format(), gated()><<<grid_of(args.shape), threads, 0, stream>>>(args);
  });
  check_launch("activation_forward_fp8");
}

void activation_backward_fp8(const ActivationFp8Args& args, CUstream_st* stream) {
  with_case(args, [&](auto type, auto format, auto gated) {
    using T = decltype(type);
    const auto kernel = args.dbias.workspace != nullptr ? backward_kernel<T, format(), gated(), true>
                                                        : backward_kernel<T, format(), gated(), false>;
    kernel<<<grid_of(args.shape), threads, 0, stream>>>(args);
  });
  check_launch("activation_backward_fp8");
  if (args.dbias.workspace == nullptr) return;
  finalize_column_sums<float>(
      {.sums = {args.dbias}, .rows = activation_fp8_workspace_rows(args.shape), .width = args.to.columns},
      stream);
}

}  // namespace teratron::cuda
