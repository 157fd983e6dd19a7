// A token of each of R sequences (launchers.h): convolution, gates and the gated delta rule. A block has a
// row, a head and 64 of its values, a thread a column of the state in registers.
// Bytes: the state is read and written once.
#include "teratron/kernels/delta/launchers.h"
#include "teratron/kernels/mamba/step_device.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 64, K = max_scan_state;
constexpr float norm_eps = 1e-6f;  // added to the squared length of q and k

/// q and k of length one.
template <typename T>
__device__ void load_keys(const DeltaStep& step, const StepPlace& place, float (&keys)[2][K]) {
  const ScanShape& shape = step.shape;
  const int shared_heads = shape.heads / shape.groups, group = place.head / shared_heads;
  const bool owns = place.head % shared_heads == 0 && blockIdx.z == 0;
  __shared__ float sums[64];
  float squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int tensor = 0; tensor < 2; ++tensor) {
    for (int i = static_cast<int>(threadIdx.x); i < K; i += threads) {
      const int channel = (tensor * shape.groups + group) * shape.state + i;
      const float value = i < shape.state ? step_convolution<T>(step.conv, place, channel, owns) : 0.0f;
      keys[tensor][i] = value;
      squares[tensor] += value * value;
    }
  }
  block_sum(squares, sums);
#pragma unroll
  for (int tensor = 0; tensor < 2; ++tensor) {
    const float factor = rsqrtf(squares[tensor] + norm_eps);
    for (int i = static_cast<int>(threadIdx.x); i < K; i += threads) keys[tensor][i] *= factor;
  }
}

template <typename T>
__global__ void __launch_bounds__(threads) delta_step_kernel(DeltaStep step) {
  __shared__ float keys[2][K];
  const ScanShape& shape = step.shape;
  const StepPlace place(step.conv, blockIdx.x, blockIdx.y);
  load_keys<T>(step, place, keys);
  __syncthreads();
  const int value = blockIdx.z * threads + static_cast<int>(threadIdx.x);
  if (value >= shape.head_dim) return;
  const int channel = 2 * shape.groups * shape.state + place.head * shape.head_dim + value;
  const float v = step_convolution<T>(step.conv, place, channel, true);
  const auto column = [&](const TokenRows& rows) {
    return widen(static_cast<const T*>(rows.data)[place.row * rows.stride + place.head]);
  };
  const float beta = step.gates.beta_scale / (1.0f + expf(-column(step.gates.b)));
  const float rate = expf(weight_at<T>(step.gates.A_log, place.head));
  const float decay =
      expf(-rate * softplus(column(step.gates.a) + weight_at<T>(step.gates.dt_bias, place.head)));
  const int64_t size = int64_t{shape.state} * shape.head_dim;
  const float* const from = step.states + (place.from * shape.heads + place.head) * size + value;
  float* const to = step.states + (place.to * shape.heads + place.head) * size + value;
  float S[K], answer = 0.0f, y = 0.0f;
#pragma unroll
  for (int k = 0; k < K; ++k)
    S[k] = place.from < 0 || k >= shape.state ? 0.0f : from[k * int64_t{shape.head_dim}];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    S[k] *= decay;
    answer += S[k] * keys[1][k];
  }
  const float error = beta * (v - answer);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    S[k] += keys[1][k] * error;
    y += S[k] * keys[0][k];
    if (k < shape.state) to[k * int64_t{shape.head_dim}] = S[k];
  }
  static_cast<T*>(step.y)[(place.row * shape.heads + place.head) * shape.head_dim + value] =
      round_to<T>(y * rsqrtf(static_cast<float>(shape.state)));
}

}  // namespace

void delta_step(const DeltaStep& step, CUstream_st* stream) {
  const dim3 grid(step.shape.heads, step.conv.rows,
                  static_cast<unsigned>(ceil_div(step.shape.head_dim, threads)));
  if (step.shape.dtype == Dtype::bf16) {
    delta_step_kernel<__nv_bfloat16><<<grid, threads, 0, stream>>>(step);
  } else {
    delta_step_kernel<__half><<<grid, threads, 0, stream>>>(step);
  }
  check_launch("delta_step");
}

}  // namespace teratron::cuda
