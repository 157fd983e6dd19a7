// A token of each of R sequences (launchers.h): convolution, time step and recurrence. A block has a row and
// a head; a warp has four rows of the state at a time, along their columns.
// Bytes: the state is read and written once.
#include "teratron/kernels/mamba/step_device.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 128, warps = threads / 32, rows_in_flight = 4;

struct StepValues {
  float x[max_scan_head_dim], B[max_scan_state], C[max_scan_state];
};

template <typename T>
__device__ void convolve_head(const ScanStep& step, const StepPlace& place, StepValues& values) {
  const ScanShape& shape = step.shape;
  const int group = place.head / (shape.heads / shape.groups), N = shape.state;
  const int inner = shape.heads * shape.head_dim, of_x = shape.head_dim;
  const bool owns_group = place.head % (shape.heads / shape.groups) == 0;
  for (int i = static_cast<int>(threadIdx.x); i < of_x + 2 * N; i += threads) {
    const bool is_x = i < of_x, is_B = !is_x && i < of_x + N;
    const int n = is_x ? i : is_B ? i - of_x : i - of_x - N;
    const int channel = is_x   ? place.head * shape.head_dim + n
                        : is_B ? inner + group * N + n
                               : inner + (shape.groups + group) * N + n;
    const float value = step_convolution<T>(step.conv, place, channel, is_x || owns_group);
    (is_x ? values.x : is_B ? values.B : values.C)[n] = value;
  }
}

/// Four columns of `rows_in_flight` rows of the state at a time.
template <typename T>
__global__ void __launch_bounds__(threads) scan_step_kernel(ScanStep step) {
  __shared__ StepValues values;
  const ScanShape& shape = step.shape;
  const StepPlace place(step.conv, blockIdx.x, blockIdx.y);
  convolve_head<T>(step, place, values);
  const float raw = widen(static_cast<const T*>(step.raw.data)[place.row * step.raw.stride + place.head]);
  const float dt = fminf(fmaxf(softplus(raw + step.dt_bias[place.head]), step.least), step.most);
  const float decay = expf(-expf(step.A_log[place.head]) * dt), D = step.D[place.head];
  __syncthreads();
  const int64_t size = int64_t{shape.head_dim} * shape.state;
  const float* const from = step.states + (place.from * shape.heads + place.head) * size;
  float* const to = step.states + (place.to * shape.heads + place.head) * size;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int p0 = warp * rows_in_flight; p0 < shape.head_dim; p0 += warps * rows_in_flight) {
    float sums[rows_in_flight] = {};
    for (int n = 4 * lane; n < shape.state; n += 128) {
      float4 S[rows_in_flight];
#pragma unroll
      for (int i = 0; i < rows_in_flight; ++i) {
        S[i] = place.from < 0 || p0 + i >= shape.head_dim
                   ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                   : *reinterpret_cast<const float4*>(from + (p0 + i) * int64_t{shape.state} + n);
      }
#pragma unroll
      for (int i = 0; i < rows_in_flight; ++i) {
        if (p0 + i >= shape.head_dim) break;
        const float u = dt * values.x[p0 + i];
        S[i] = make_float4(decay * S[i].x + u * values.B[n], decay * S[i].y + u * values.B[n + 1],
                           decay * S[i].z + u * values.B[n + 2], decay * S[i].w + u * values.B[n + 3]);
        sums[i] += (S[i].x * values.C[n] + S[i].y * values.C[n + 1]) +
                   (S[i].z * values.C[n + 2] + S[i].w * values.C[n + 3]);
        *reinterpret_cast<float4*>(to + (p0 + i) * int64_t{shape.state} + n) = S[i];
      }
    }
#pragma unroll
    for (int i = 0; i < rows_in_flight; ++i) {
      const float sum = warp_sum(sums[i]);
      if (lane > 0 || p0 + i >= shape.head_dim) continue;
      static_cast<T*>(step.y)[(place.row * shape.heads + place.head) * shape.head_dim + p0 + i] =
          round_to<T>(sum + D * values.x[p0 + i]);
    }
  }
}

}  // namespace

void scan_step(const ScanStep& step, CUstream_st* stream) {
  const dim3 grid(step.shape.heads, step.conv.rows);
  if (step.shape.dtype == Dtype::bf16) {
    scan_step_kernel<__nv_bfloat16><<<grid, threads, 0, stream>>>(step);
  } else {
    scan_step_kernel<__half><<<grid, threads, 0, stream>>>(step);
  }
  check_launch("scan_step");
}

}  // namespace teratron::cuda
