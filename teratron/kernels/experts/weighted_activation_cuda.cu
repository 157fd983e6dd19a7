// Activation of an expert's rows, times the probability p of each row (weighted_activation.h):
//   h = p f(z); backward: dz = p f'(z) dh, dp = sum over columns of dh f(z)
// One block per row, a thread per 16-byte pack of columns; the sum of dp goes through shared memory.
// Bytes: forward reads z and writes h; backward reads z and dh and writes dz and h, which the GEMM's weight
// gradient needs again.
#include <algorithm>

#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/experts/launchers.h"
#include "teratron/kernels/pointwise/activation_math.cuh"

namespace teratron::cuda {
namespace {

/// Gate|up, or one part, of N columns.
template <typename T, int N, int parts>
struct Inputs {
  Accumulator<T> of[parts][N];

  __device__ Inputs(const WeightedActivationArgs& args, int64_t row, int64_t column) {
    const T* const z = static_cast<const T*>(args.z) + row * parts * args.width + column;
    Pack<T, N> packs[parts];
#pragma unroll
    for (int p = 0; p < parts; ++p) packs[p] = load<N>(z + p * args.width);
#pragma unroll
    for (int p = 0; p < parts; ++p) widen(packs[p], of[p]);
  }
};

/// One block per row.
template <typename T, int N, bool gated>
__global__ void __launch_bounds__(256) forward_kernel(WeightedActivationArgs args) {
  using A = Accumulator<T>;
  constexpr int parts = gated ? 2 : 1;
  const int64_t row = blockIdx.x;
  const A p = static_cast<const A*>(args.p)[row];
  with_kind<gated>(args.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    for (int64_t column = threadIdx.x * N; column < args.width; column += int64_t{blockDim.x} * N) {
      const Inputs<T, N, parts> z(args, row, column);
      A h[N];
#pragma unroll
      for (int i = 0; i < N; ++i)
        h[i] = p * output_of<f>(z.of[0][i], z.of[parts - 1][i], gate_of<f>(z.of[0][i]));
      store<N>(static_cast<T*>(args.h) + row * args.width + column, round_to_pack<T>(h));
    }
  });
}

template <typename T, int N, bool gated>
__global__ void __launch_bounds__(256) backward_kernel(WeightedActivationArgs args) {
  using A = Accumulator<T>;
  constexpr int parts = gated ? 2 : 1;
  __shared__ A shared[32];
  const int64_t row = blockIdx.x;
  const A p = static_cast<const A*>(args.p)[row];
  A dp[1] = {};
  with_kind<gated>(args.activation, [&](auto kind) {
    constexpr Activation f = decltype(kind)::value;
    for (int64_t column = threadIdx.x * N; column < args.width; column += int64_t{blockDim.x} * N) {
      const int64_t at = row * args.width + column;
      const Pack<T, N> pack = load<N>(static_cast<const T*>(args.dh) + at);
      Inputs<T, N, parts> z(args, row, column);
      A dh[N], h[N];
      widen(pack, dh);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A gate = gate_of<f>(z.of[0][i]), value = output_of<f>(z.of[0][i], z.of[parts - 1][i], gate);
        dp[0] += dh[i] * value;
        h[i] = p * value;
        const auto gradient = gradients_of<f>(p * dh[i], z.of[0][i], z.of[parts - 1][i], gate);
        if constexpr (gated) z.of[1][i] = gradient.up;
        z.of[0][i] = gradient.z;
      }
      store<N>(static_cast<T*>(args.h) + at, round_to_pack<T>(h));
      T* const dz = static_cast<T*>(args.dz) + row * parts * args.width + column;
#pragma unroll
      for (int part = 0; part < parts; ++part) store<N>(dz + part * args.width, round_to_pack<T>(z.of[part]));
    }
  });
  block_sum(dp, shared);
  if (threadIdx.x == 0) static_cast<A*>(args.dp)[row] = dp[0];
}

enum class Pass { forward, backward };

template <typename T, int N>
void launch(Pass pass, const WeightedActivationArgs& args, cudaStream_t stream) {
  const bool gated = is_gated(args.activation);
  const auto forward = gated ? forward_kernel<T, N, true> : forward_kernel<T, N, false>;
  const auto backward = gated ? backward_kernel<T, N, true> : backward_kernel<T, N, false>;
  const int64_t warps = ceil_div(ceil_div(args.width, N), 32);
  const auto threads = static_cast<unsigned>(32 * std::min<int64_t>(8, warps));
  (pass == Pass::forward ? forward
                         : backward)<<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  check_launch("weighted_activation");
}

void dispatch(Pass pass, const WeightedActivationArgs& args, cudaStream_t stream) {
  with_pack(args.dtype, args.width, aligned(args.z, args.dh, args.h, args.dz),
            [&]<typename T>(T, auto pack) { launch<T, pack.value>(pass, args, stream); });
}

}  // namespace

void weighted_activation_forward(const WeightedActivationArgs& args, CUstream_st* stream) {
  dispatch(Pass::forward, args, stream);
}

void weighted_activation_backward(const WeightedActivationArgs& args, CUstream_st* stream) {
  dispatch(Pass::backward, args, stream);
}

}  // namespace teratron::cuda
