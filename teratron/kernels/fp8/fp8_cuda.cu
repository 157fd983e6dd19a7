// Cast to FP8 as rows and transposed, and scales (fp8.h): y = cast(scale x), scale = largest / max |x|. The
// cast works on tiles as activation_fp8_cuda.cu does. The largest magnitude is taken by a grid of threads
// with a pack each, blocks through one atomic maximum; a single thread turns it into a scale. Rows in
// groups (experts) are padded in the transpose: a thread finds the group of its rows by bisection.
// Bytes: x is read once, FP8 is written twice. One H200: 0.86 to 0.90 of a copy.
#include <algorithm>

#include "teratron/kernels/fp8/fp8_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = Fp8Tile::threads, pack = Fp8Tile::pack;

/// Four rows of x from the position of a thread on.
struct PlainRows {
  int64_t first;
  static constexpr int count = 4;

  __device__ PlainRows(const Fp8RowGroups&, int64_t position) : first(position) {}
};

/// Four rows of one group, from a position in the transpose, where groups are padded; the last may be
/// padding.
struct GroupedRows {
  int64_t first = 0;
  int count = 0;

  __device__ GroupedRows(const Fp8RowGroups& groups, int64_t position) {
    int64_t group = 0, behind = groups.count;  // the first group that ends after the position
    while (group < behind) {
      const int64_t middle = (group + behind) / 2;
      if (groups.padded_ends[middle] > position) {
        behind = middle;
      } else {
        group = middle + 1;
      }
    }
    if (group == groups.count) return;
    const int begin = group > 0 ? groups.ends[group - 1] : 0,
              padded_begin = group > 0 ? groups.padded_ends[group - 1] : 0;
    first = begin + position - padded_begin;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{4}, groups.ends[group] - first)));
  }
};

template <typename T, Fp8Format format, typename Rows>
__global__ void __launch_bounds__(threads) cast_kernel(Fp8CastArgs args) {
  __shared__ Fp8Tile tile;
  const Fp8Output& to = args.to;
  const Fp8Position position;
  Fp8Quad<format> quad;
  if (position.column < to.columns && position.row < to.rows) {
    const Rows rows(args.groups, position.row);
    const T* const from = static_cast<const T*>(args.x) + rows.first * to.columns + position.column;
    Pack<T, pack> x[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < rows.count) x[r] = load<pack>(from + r * to.columns);
    }
    const float scale = *to.scale;
#pragma unroll
    for (int r = 0; r < 4; ++r) quad.set(r, x[r], scale);
    if (to.out != nullptr) quad.write_rows(to, rows.first, position.column, rows.count);
    quad.put(tile, position);
  }
  update_amax(to.amax, quad.amax);
  if (to.transposed == nullptr) return;
  __syncthreads();
  tile.write_transposed(to, position.first_column, to.columns - position.first_column);
}

template <typename T, typename Rows>
void launch_cast(const Fp8CastArgs& args, CUstream_st* stream) {
  const auto kernel = args.to.format == Fp8Format::e4m3 ? cast_kernel<T, Fp8Format::e4m3, Rows>
                                                        : cast_kernel<T, Fp8Format::e5m2, Rows>;
  kernel<<<Fp8Tile::grid(args.to.rows, args.to.columns), threads, 0, stream>>>(args);
}

template <typename T>
__global__ void __launch_bounds__(threads) amax_kernel(Fp8ScaleArgs args) {
  const int64_t step = gridDim.x * int64_t{threads};
  const T* const x = static_cast<const T*>(args.x);
  const int64_t count = args.rows != nullptr ? *args.rows * args.columns : args.count;
  uint32_t amax = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.x * int64_t{threads} + threadIdx.x; i < count / pack; i += step) {
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
    args.groups.count > 0 ? launch_cast<T, GroupedRows>(args, stream)
                          : launch_cast<T, PlainRows>(args, stream);
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
