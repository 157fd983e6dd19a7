#include "teratron/kernels/fp8/fp8_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = Fp8Tile::threads, pack = Fp8Tile::pack;

template <typename T, Fp8Format format>
__global__ void __launch_bounds__(threads) cast_kernel(Fp8CastArgs args) {
  __shared__ Fp8Tile tile;
  const Fp8Target& to = args.to;
  const Fp8Place place;
  Fp8Quad<format> quad;
  if (place.column < to.columns && place.row < to.rows) {
    const T* const from = static_cast<const T*>(args.x) + place.row * to.columns + place.column;
    Pack<T, pack> x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = load<pack>(from + r * to.columns);
    const float scale = *to.scale;
#pragma unroll
    for (int r = 0; r < 4; ++r) quad.set(r, x[r], scale);
    if (to.out != nullptr) quad.write_rows(to, place.row, place.column);
    quad.put(tile, place);
  }
  raise(to.amax, quad.most);
  if (to.transposed == nullptr) return;
  __syncthreads();
  tile.write_transposed(to, place.first_column, to.columns - place.first_column);
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
  with_source_type(args.dtype, [&]<typename T>(T) {
    const auto kernel =
        args.to.format == Fp8Format::e4m3 ? cast_kernel<T, Fp8Format::e4m3> : cast_kernel<T, Fp8Format::e5m2>;
    kernel<<<fp8_grid(args.to), threads, 0, stream>>>(args);
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
