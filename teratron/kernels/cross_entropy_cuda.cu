#include "teratron/kernels/cross_entropy_cuda.h"
#include "teratron/kernels/device.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads =
    256;  // small blocks: while one ends with its reductions, others of the multiprocessor load

/// The row's target among the local logical columns, or -1.
__device__ int64_t local_target(const VocabShape& shape, int64_t target) {
  const int64_t column = target - shape.first;
  return column >= 0 && column < shape.columns ? column : -1;
}

/// f(pack, column) for this thread's packs of a row, four loads at a time.
template <typename T, int N, typename F>
__device__ void walk_packs(const T* row, int64_t columns, F&& f) {
  constexpr int R = 4;
  const int64_t step = blockDim.x * int64_t{N};
  for (int64_t first = threadIdx.x * N; first < columns; first += R * step) {
    Pack<T, N> packs[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < columns) packs[r] = load<N>(row + first + r * step);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r * step < columns) f(packs[r], first + r * step);
    }
  }
}

/// One block per row, one pass.
template <typename T, int N>
__global__ void __launch_bounds__(threads)
    cross_entropy_statistics_kernel(VocabShape shape, CrossEntropyStatisticsArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const int64_t row = blockIdx.x;
  const T* const z = static_cast<const T*>(args.logits) + row * shape.width;
  const int64_t whole = shape.columns / N * N;
  RunningSoftmax<A> statistics;
  walk_packs<T, N>(z, whole, [&](const Pack<T, N>& pack, int64_t) {
    A x[N];
    widen(pack, x);
    statistics.add(x);
  });
  if (whole + threadIdx.x < shape.columns) {
    const A x[1] = {widen(z[whole + threadIdx.x])};
    statistics.add(x);
  }
  block_merge(statistics, shared);
  if (threadIdx.x != 0) return;
  const int64_t column = local_target(shape, args.targets[row]);
  static_cast<A*>(args.max)[row] = statistics.max;
  static_cast<A*>(args.sum_exp)[row] = statistics.sum;
  static_cast<A*>(args.target_logit)[row] = column < 0 ? A(0) : A(widen(z[column]));
}

/// One block per row. Rows with scale 0 (masked tokens) are written without being read.
template <typename T, int N>
__global__ void __launch_bounds__(threads)
    cross_entropy_gradient_kernel(VocabShape shape, CrossEntropyGradientArgs args) {
  using A = Accumulator<T>;
  const int64_t row = blockIdx.x;
  T* const z = static_cast<T*>(args.logits) + row * shape.width;
  const A scale = static_cast<const A*>(args.scale)[row];
  const A max = static_cast<const A*>(args.max)[row];
  const A factor = scale / static_cast<const A*>(args.sum_exp)[row];
  const int64_t target = local_target(shape, args.targets[row]);
  // Of the pack's element i, where the pack begins `left` columns before the padding.
  const auto gradient = [&](A value, int i, int left, int target_here) {
    const A p = i < left ? fast_exp(value - max) * factor : A(0);
    return i == target_here ? p - scale : p;
  };
  if (scale == A(0)) {
    Pack<T, N> zeros;
#pragma unroll
    for (int i = 0; i < N; ++i) zeros.v[i] = round_to<T>(A(0));
    for (int64_t c = threadIdx.x * N; c < shape.width; c += blockDim.x * N) store<N>(z + c, zeros);
    return;
  }
  walk_packs<T, N>(z, shape.width, [&](Pack<T, N>& pack, int64_t c) {
    A x[N];
    widen(pack, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = gradient(x[i], i, static_cast<int>(shape.columns - c), static_cast<int>(target - c));
    }
    store<N>(z + c, round_to_pack<T>(x));
  });
}

/// Calls f(T{}, N) with N the pack that width and alignment allow.
template <typename F>
void with_pack(const VocabShape& shape, const void* logits, F&& f) {
  with_device_type(shape.dtype, [&]<typename T>(T zero) {
    if (shape.width % pack_size<T> == 0 && aligned(logits)) {
      f(zero, std::integral_constant<int, pack_size<T>>{});
    } else {
      f(zero, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void cross_entropy_statistics(const VocabShape& shape, const CrossEntropyStatisticsArgs& args,
                              CUstream_st* stream) {
  with_pack(shape, args.logits, [&]<typename T>(T, auto pack) {
    cross_entropy_statistics_kernel<T, pack.value>
        <<<static_cast<unsigned>(shape.rows), threads, 0, stream>>>(shape, args);
  });
  check_launch("cross_entropy_statistics");
}

void cross_entropy_gradient(const VocabShape& shape, const CrossEntropyGradientArgs& args,
                            CUstream_st* stream) {
  with_pack(shape, args.logits, [&]<typename T>(T, auto pack) {
    cross_entropy_gradient_kernel<T, pack.value>
        <<<static_cast<unsigned>(shape.rows), threads, 0, stream>>>(shape, args);
  });
  check_launch("cross_entropy_gradient");
}

}  // namespace teratron::cuda
