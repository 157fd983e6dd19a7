#include "teratron/kernels/device.cuh"
#include "teratron/kernels/norm_cuda.h"
#include "teratron/kernels/norm_device.cuh"

namespace teratron::cuda {
namespace {

/// h of one pack, rounded to T as it is stored.
template <int N, typename T, typename A>
__device__ void read_sum(const NormForwardArgs& args, int64_t offset, int64_t column, A (&h)[N]) {
  const Pack<T, N> x = load<N>(static_cast<const T*>(args.x) + offset);
  Pack<T, N> residual, bias, sum;
  if (args.residual != nullptr) residual = load<N>(static_cast<const T*>(args.residual) + offset);
  if (args.added_bias != nullptr) bias = load<N>(static_cast<const T*>(args.added_bias) + column);
#pragma unroll
  for (int i = 0; i < N; ++i) h[i] = widen(x.v[i]);
  if (args.sum == nullptr) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (args.added_bias != nullptr) h[i] += widen(bias.v[i]);
    if (args.residual != nullptr) h[i] += widen(residual.v[i]);
    sum.v[i] = round_to<T>(h[i]);
    h[i] = widen(sum.v[i]);
  }
  store<N>(static_cast<T*>(args.sum) + offset, sum);
}

template <typename T, typename A, int N>
__device__ void read_parameters(const NormShape& shape, const NormForwardArgs& args, int64_t column,
                                A (&gain)[N], A (&shift)[N]) {
  read_gain<N, T>(shape, args.weight, column, gain);
  read_parameter<N, T>(shape, args.bias, column, shift);
}

/// One block per row; thread t holds the packs t, t + blockDim.x, ... (PER of them) in registers.
template <typename T, int PER>
__global__ void __launch_bounds__(max_row_threads)
    forward_in_registers(NormShape shape, NormForwardArgs args) {
  constexpr int N = pack_size<T>;
  __shared__ float shared[64];
  const int64_t row = blockIdx.x;
  const float width = static_cast<float>(shape.width);
  // One pack per thread leaves the registers to fetch the parameters before they are needed.
  constexpr bool early = PER == 1;
  float h[PER][N], gain[N], shift[N];
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
    if (column < shape.width) {
      read_sum<N, T, float>(args, row * shape.width + column, column, h[k]);
      if (early) read_parameters<T>(shape, args, column, gain, shift);
    }
  }
  float mean = 0;
  if (!shape.rms) {
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < PER; ++k) {
      if ((k * blockDim.x + threadIdx.x) * int64_t{N} < shape.width) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[0] += h[k][i];
      }
    }
    block_sum(sum, shared);
    mean = sum[0] / width;
  }
  float squares[1] = {0};
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    if ((k * blockDim.x + threadIdx.x) * int64_t{N} < shape.width) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        h[k][i] -= mean;
        squares[0] += h[k][i] * h[k][i];
      }
    }
  }
  block_sum(squares, shared + 32);
  const float rstd = rsqrtf(squares[0] / width + static_cast<float>(shape.eps));
  if (threadIdx.x == 0) {
    static_cast<float*>(args.rstd)[row] = rstd;
    if (!shape.rms) static_cast<float*>(args.mean)[row] = mean;
  }
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int64_t column = (k * blockDim.x + threadIdx.x) * int64_t{N};
    if (column >= shape.width) continue;
    if (!early) read_parameters<T>(shape, args, column, gain, shift);
    Pack<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y.v[i] = round_to<T>(h[k][i] * rstd * gain[i] + shift[i]);
    store<N>(static_cast<T*>(args.y) + row * shape.width + column, y);
  }
}

/// Any width, alignment and type; the row is read again for each step.
template <typename T>
__global__ void __launch_bounds__(256) forward_any(NormShape shape, NormForwardArgs args) {
  using A = Accumulator<T>;
  __shared__ A shared[64];
  const int64_t row = blockIdx.x, start = row * shape.width;
  const T* const sum = static_cast<const T*>(args.sum == nullptr ? args.x : args.sum) + start;
  A total[1] = {0};
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A h[1];
    read_sum<1, T, A>(args, start + c, c, h);
    total[0] += h[0];
  }
  block_sum(total, shared);
  const A mean = shape.rms ? A(0) : total[0] / static_cast<A>(shape.width);
  A squares[1] = {0};
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    const A centred = widen(sum[c]) - mean;
    squares[0] += centred * centred;
  }
  block_sum(squares, shared + 32);
  const A rstd = A(1) / sqrt(squares[0] / static_cast<A>(shape.width) + static_cast<A>(shape.eps));
  if (threadIdx.x == 0) {
    static_cast<A*>(args.rstd)[row] = rstd;
    if (!shape.rms) static_cast<A*>(args.mean)[row] = mean;
  }
  for (int64_t c = threadIdx.x; c < shape.width; c += blockDim.x) {
    A gain[1], shift[1];
    read_gain<1, T>(shape, args.weight, c, gain);
    read_parameter<1, T>(shape, args.bias, c, shift);
    static_cast<T*>(args.y)[start + c] = round_to<T>((widen(sum[c]) - mean) * rstd * gain[0] + shift[0]);
  }
}

template <typename T>
void launch(const NormShape& shape, const NormForwardArgs& args, cudaStream_t stream) {
  const unsigned rows = static_cast<unsigned>(shape.rows);
  if constexpr (!std::is_same_v<T, double>) {
    const RowPlan plan = plan_row(shape, pack_size<T>);
    if (plan.packs_per_thread > 0 &&
        aligned(args.x, args.residual, args.added_bias, args.weight, args.bias, args.sum, args.y)) {
      if (plan.packs_per_thread == 1) {
        forward_in_registers<T, 1><<<rows, plan.threads, 0, stream>>>(shape, args);
      } else if (plan.packs_per_thread == 2) {
        forward_in_registers<T, 2><<<rows, plan.threads, 0, stream>>>(shape, args);
      } else {
        forward_in_registers<T, 4><<<rows, plan.threads, 0, stream>>>(shape, args);
      }
      return;
    }
  }
  forward_any<T><<<rows, 256, 0, stream>>>(shape, args);
}

}  // namespace

void norm_forward(const NormShape& shape, const NormForwardArgs& args, CUstream_st* stream) {
  with_device_type(shape.dtype, [&]<typename T>(T) { launch<T>(shape, args, stream); });
  check_launch("norm_forward");
}

}  // namespace teratron::cuda
