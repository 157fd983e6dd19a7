#include <algorithm>

#include "teratron/kernels/fp8/fp8_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = Fp8Tile::threads, pack = Fp8Tile::pack;

template <typename T, Fp8Format format>
__global__ void __launch_bounds__(threads) cast_kernel(Fp8CastArgs args) {
  __shared__ Fp8Tile tile;
  const Fp8Output& to = args.to;
  const Fp8Position position;
  Fp8Quad<format> quad;
  if (position.column < to.columns && position.row < to.rows) {
    const T* const from = static_cast<const T*>(args.x) + position.row * to.columns + position.column;
    Pack<T, pack> x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = load<pack>(from + r * to.columns);
    const float scale = *to.scale;
#pragma unroll
    for (int r = 0; r < 4; ++r) quad.set(r, x[r], scale);
    if (to.out != nullptr) quad.write_rows(to, position.row, position.column);
    quad.put(tile, position);
  }
  update_amax(to.amax, quad.amax);
  if (to.transposed == nullptr) return;
  __syncthreads();
  tile.write_transposed(to, position.first_column, to.columns - position.first_column);
}

template <typename T>
__global__ void __launch_bounds__(threads) amax_kernel(Fp8ScaleArgs args) {
  const int64_t step = gridDim.x * int64_t{threads};
  const T* const x = static_cast<const T*>(args.x);
  uint32_t amax = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.x * int64_t{threads} + threadIdx.x; i < args.count / pack; i += step) {
    amax = max(amax, magnitude(load<pack>(x + i * pack)));
  }
  update_amax(args.amax, amax);
}

__global__ void scale_kernel(Fp8ScaleArgs args) {
  const float amax = *args.amax;
  const float exact = fminf(args.largest / amax, static_cast<float>(largest_fp8_scale));
  const float scale = isfinite(amax) && amax > 0 ? exact : 1.0F;
  *args.scale = scale;
  *args.scale_inv = 1.0F / scale;
}

template <typename F>
void with_source_type(Dtype dtype, F&& f) {
  if (dtype == Dtype::bf16) return f(__nv_bfloat16{});
  if (dtype == Dtype::f16) return f(__half{});
  f(float{});
}

}  // namespace

void fp8_cast(const Fp8CastArgs& args, CUstream_st* stream) {
  with_source_type(args.dtype, [&]<typename T>(T) {
    const auto kernel =
        args.to.format == Fp8Format::e4m3 ? cast_kernel<T, Fp8Format::e4m3> : cast_kernel<T, Fp8Format::e5m2>;
    kernel<<<Fp8Tile::grid(args.to.rows, args.to.columns), threads, 0, stream>>>(args);
  });
  check_launch("fp8_cast");
}

void compute_fp8_scale(const Fp8ScaleArgs& args, CUstream_st* stream) {
  const auto blocks =
      static_cast<unsigned>(std::min(ceil_div(args.count / pack, threads), int64_t{sm_count()} * 16));
  if (blocks > 0) {
    with_source_type(args.dtype,
                     [&]<typename T>(T) { amax_kernel<T><<<blocks, threads, 0, stream>>>(args); });
  }
  scale_kernel<<<1, 1, 0, stream>>>(args);
  check_launch("compute_fp8_scale");
}

}  // namespace teratron::cuda
