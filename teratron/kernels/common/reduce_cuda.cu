// Sum of squares, number of zeros, search for NaN or Inf, scaling, and sums over parts, of flat buffers.
// Grids of a size that depends on the buffer alone, so the order of additions is fixed: a thread takes
// every grid-th pack of 16 bytes; a block's threads are added in shared memory, and a block of 1,024
// threads adds the results of at most 1,024 blocks.
// Bytes: the buffer is read once (scaling also writes it). Sum of squares, f32, on one H200: 0.98 of a
// copy.
#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/common/launchers.h"

namespace teratron::cuda {
namespace {

// Fixed, so that the order of additions depends only on the size of the buffer.
constexpr int64_t max_blocks = 1024;
constexpr int threads = 256;
constexpr int64_t elements_per_thread = 32;

struct SumOfSquares {
  using Result = double;
  /// Squares within a pack are added in the accumulation type, packs in f64. f32 gradients above 1.8e19
  /// overflow to inf, as they should.
  template <typename A, int N>
  static __device__ double of(const A (&x)[N]) {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[i] * x[i];
    return sum;
  }
};

struct CountZeros {
  using Result = int64_t;
  template <typename A, int N>
  static __device__ int64_t of(const A (&x)[N]) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) count += x[i] == A(0);
    return count;
  }
};

/// f(x, first) for every pack of this thread, then for its element of the remainder.
template <typename T, int N, typename F>
__device__ void for_each_pack(const FlatBuffer& buffer, F&& f) {
  using A = Accumulator<T>;
  const T* const data = static_cast<const T*>(buffer.data);
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x,
                step = gridDim.x * int64_t{blockDim.x} * N;
  const int64_t whole = buffer.n / N * N;
#pragma unroll 4
  for (int64_t i = thread * N; i < whole; i += step) {
    A x[N];
    widen(load<N>(data + i), x);
    f(x, i);
  }
  if (whole + thread < buffer.n) {
    const A x[1] = {widen(data[whole + thread])};
    f(x, whole + thread);
  }
}

template <typename Op, typename T, int N>
__global__ void __launch_bounds__(threads) reduce_kernel(FlatBuffer buffer, typename Op::Result* workspace) {
  using R = typename Op::Result;
  __shared__ R shared[32];
  R sum[1] = {0};
  for_each_pack<T, N>(buffer, [&](const auto& x, int64_t) { sum[0] += Op::of(x); });
  block_sum(sum, shared);
  if (threadIdx.x == 0) workspace[blockIdx.x] = sum[0];
}

template <typename R>
__global__ void __launch_bounds__(1024) finalize_kernel(const R* workspace, int count, R* out) {
  __shared__ R shared[32];
  R sum[1] = {static_cast<int>(threadIdx.x) < count ? workspace[threadIdx.x] : R(0)};
  block_sum(sum, shared);
  if (threadIdx.x == 0) *out = sum[0];
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) nonfinite_kernel(FlatBuffer buffer, float* flag) {
  bool bad = false;
  for_each_pack<T, N>(buffer, [&](const auto& x, int64_t) {
    for (const auto value : x) bad |= !isfinite(value);
  });
  if (bad) *flag = 1;  // all writers write the same value
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) scale_kernel(FlatBuffer buffer, const void* factor, bool wide) {
  using A = Accumulator<T>;
  const A f = wide ? static_cast<A>(*static_cast<const double*>(factor))
                   : static_cast<A>(*static_cast<const float*>(factor));
  T* const data = static_cast<T*>(const_cast<void*>(buffer.data));
  for_each_pack<T, N>(buffer, [&]<int M>(const A(&x)[M], int64_t first) {
    A scaled[M];
#pragma unroll
    for (int i = 0; i < M; ++i) scaled[i] = x[i] * f;
    store<M>(data + first, round_to_pack<T>(scaled));
  });
}

/// Sums of N neighboring elements over the parts.
template <typename T, int N>
struct SumOfParts {
  Accumulator<T> sum[N] = {};

  __device__ void add(const void* part, int64_t first) {
    Accumulator<T> x[N];
    widen(load<N>(static_cast<const T*>(part) + first), x);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += x[k];
  }
  __device__ void write(T* out, Accumulator<T> divisor) {
    if (divisor != Accumulator<T>(1)) {
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] /= divisor;
    }
    store<N>(out, round_to_pack<T>(sum));
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(threads)
    sum_parts_kernel(FlatBuffer buffer, Parts parts, Accumulator<T> divisor) {
  T* const out = static_cast<T*>(const_cast<void*>(buffer.data));
  const int64_t row = int64_t{blockDim.x} * N, whole = buffer.n / N * N;
  for (int64_t first = blockIdx.x * 2 * row + threadIdx.x * N; first < whole; first += gridDim.x * 2 * row) {
    const bool both = first + row < whole;
    SumOfParts<T, N> sums[2];
#pragma unroll 2
    for (int part = 0; part < parts.count; ++part) {
      sums[0].add(parts.data[part], first);
      if (both) sums[1].add(parts.data[part], first + row);
    }
    sums[0].write(out + first, divisor);
    if (both) sums[1].write(out + first + row, divisor);
  }
  const int64_t rest = whole + blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (rest >= buffer.n) return;
  SumOfParts<T, 1> last;
  for (int part = 0; part < parts.count; ++part) last.add(parts.data[part], rest);
  last.write(out + rest, divisor);
}

template <typename Op>
void reduce(const FlatBuffer& x, typename Op::Result* workspace, typename Op::Result* out,
            cudaStream_t stream) {
  const int blocks = static_cast<int>(reduce_workspace_size(x.n));
  with_pack(x.dtype, 0, aligned(x.data), [&]<typename T>(T, auto pack) {
    reduce_kernel<Op, T, pack.value><<<blocks, threads, 0, stream>>>(x, workspace);
  });
  check_launch("reduce");
  finalize_kernel<<<1, 1024, 0, stream>>>(workspace, blocks, out);
  check_launch("reduce");
}

unsigned wide_grid(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(n, threads * elements_per_thread), 4096));
}

}  // namespace

int64_t reduce_workspace_size(int64_t n) {
  return std::min(ceil_div(n, threads * elements_per_thread), max_blocks);
}

void sum_of_squares(const FlatBuffer& x, double* workspace, double* out, CUstream_st* stream) {
  reduce<SumOfSquares>(x, workspace, out, stream);
}

void count_zeros(const FlatBuffer& x, int64_t* workspace, int64_t* out, CUstream_st* stream) {
  reduce<CountZeros>(x, workspace, out, stream);
}

void flag_nonfinite(const FlatBuffer& x, float* flag, CUstream_st* stream) {
  with_pack(x.dtype, 0, aligned(x.data), [&]<typename T>(T, auto pack) {
    nonfinite_kernel<T, pack.value><<<wide_grid(x.n), threads, 0, stream>>>(x, flag);
  });
  check_launch("flag_nonfinite");
}

void scale(const FlatBuffer& x, const void* factor, bool wide, CUstream_st* stream) {
  with_pack(x.dtype, 0, aligned(x.data), [&]<typename T>(T, auto pack) {
    scale_kernel<T, pack.value><<<wide_grid(x.n), threads, 0, stream>>>(x, factor, wide);
  });
  check_launch("scale");
}

void sum_parts(const FlatBuffer& out, const Parts& parts, bool average, CUstream_st* stream) {
  bool is_aligned = aligned(out.data);
  for (int part = 0; part < parts.count; ++part) is_aligned = is_aligned && aligned(parts.data[part]);
  with_pack(out.dtype, 0, is_aligned, [&]<typename T>(T, auto pack) {
    const Accumulator<T> divisor = average ? parts.count : 1;
    sum_parts_kernel<T, pack.value><<<wide_grid(out.n), threads, 0, stream>>>(out, parts, divisor);
  });
  check_launch("sum_parts");
}

}  // namespace teratron::cuda
