// Time steps and decays of launchers.h. A block has the tokens of a chunk and 32 heads; a warp sums along the
// tokens of a head.
// Bytes: the columns dt once; four values in f32 are written once.
#include "teratron/kernels/mamba/scan_tokens.cuh"

namespace teratron::cuda {
namespace {

constexpr int heads_per_block = 32, threads = 256, warps = threads / 32;

template <typename T>
__global__ void __launch_bounds__(threads)
    time_steps_kernel(ScanShape shape, TimeStepArgs args, ScanTokens tokens) {
  __shared__ float steps[scan_chunk][heads_per_block + 1];
  const int chunk = blockIdx.x, head0 = blockIdx.y * heads_per_block, batch = blockIdx.z;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (head0 + lane < shape.heads) {
    const float bias = args.bias[head0 + lane];
    for (int t = warp; t < scan_chunk; t += warps) {
      const int token = chunk * scan_chunk + t;
      float step = 0.0f;
      if (token < shape.tokens) {
        const int64_t row = token * int64_t{shape.batch} + batch;
        const float raw =
            widen(static_cast<const T*>(args.raw.data)[row * args.raw.stride + head0 + lane]) + bias;
        step = fminf(fmaxf(softplus(raw), args.least), args.most);
      }
      steps[t][lane] = step;
    }
  }
  __syncthreads();
  const ChunkStarts starts(shape, tokens.first, batch, chunk);
  for (int head = warp; head < heads_per_block && head0 + head < shape.heads; head += warps) {
    const float decay = -expf(args.A_log[head0 + head]);
    const float2 dt = make_float2(steps[2 * lane][head], steps[2 * lane + 1][head]);
    const int64_t at =
        ((int64_t{batch} * shape.heads + head0 + head) * shape.chunks + chunk) * scan_chunk + 2 * lane;
    *reinterpret_cast<float2*>(tokens.dt + at) = dt;
    write_decays(tokens, at, make_float2(decay * dt.x, decay * dt.y), starts);
  }
}

}  // namespace

void time_steps(const ScanShape& shape, const TimeStepArgs& args, const ScanTokens& tokens,
                CUstream_st* stream) {
  document_starts(shape, args.document, tokens.first, stream);
  const dim3 grid(shape.chunks, static_cast<unsigned>(ceil_div(shape.heads, heads_per_block)), shape.batch);
  if (shape.dtype == Dtype::bf16) {
    time_steps_kernel<__nv_bfloat16><<<grid, threads, 0, stream>>>(shape, args, tokens);
  } else {
    time_steps_kernel<__half><<<grid, threads, 0, stream>>>(shape, args, tokens);
  }
  check_launch("time_steps");
}

}  // namespace teratron::cuda
