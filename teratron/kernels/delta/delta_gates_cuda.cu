// beta and decays of launchers.h. A block has the tokens of a chunk and 32 heads; a warp sums along the
// tokens of a head.
// Bytes: the columns b and a once; four values in f32 are written once.
#include "teratron/kernels/delta/launchers.h"
#include "teratron/kernels/mamba/scan_tokens.cuh"
#include "teratron/kernels/mamba/weight_at.cuh"

namespace teratron::cuda {
namespace {

constexpr int heads_per_block = 32, threads = 256, warps = threads / 32;

template <typename T>
__global__ void __launch_bounds__(threads)
    delta_gates_kernel(ScanShape shape, DeltaGateArgs args, ScanTokens tokens) {
  __shared__ float betas[scan_chunk][heads_per_block + 1], logs[scan_chunk][heads_per_block + 1];
  const int chunk = blockIdx.x, head0 = blockIdx.y * heads_per_block, batch = blockIdx.z;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (head0 + lane < shape.heads) {
    const float bias = weight_at<T>(args.dt_bias, head0 + lane),
                rate = expf(weight_at<T>(args.A_log, head0 + lane));
    for (int t = warp; t < scan_chunk; t += warps) {
      const int token = chunk * scan_chunk + t;
      float beta = 0.0f, g = 0.0f;
      if (token < shape.tokens) {
        const int64_t row = token * int64_t{shape.batch} + batch;
        const auto value = [&](const TokenRows& rows) {
          return widen(static_cast<const T*>(rows.data)[row * rows.stride + head0 + lane]);
        };
        beta = args.beta_scale / (1.0f + expf(-value(args.b)));
        g = -rate * softplus(value(args.a) + bias);
      }
      betas[t][lane] = beta;
      logs[t][lane] = g;
    }
  }
  __syncthreads();
  const ChunkStarts starts(shape, tokens.first, batch, chunk);
  for (int head = warp; head < heads_per_block && head0 + head < shape.heads; head += warps) {
    const int64_t at =
        ((int64_t{batch} * shape.heads + head0 + head) * shape.chunks + chunk) * scan_chunk + 2 * lane;
    *reinterpret_cast<float2*>(tokens.dt + at) =
        make_float2(betas[2 * lane][head], betas[2 * lane + 1][head]);
    write_decays(tokens, at, make_float2(logs[2 * lane][head], logs[2 * lane + 1][head]), starts);
  }
}

}  // namespace

void delta_gates(const ScanShape& shape, const DeltaGateArgs& args, const ScanTokens& tokens,
                 CUstream_st* stream) {
  document_starts(shape, args.document, tokens.first, stream);
  const dim3 grid(shape.chunks, static_cast<unsigned>(ceil_div(shape.heads, heads_per_block)), shape.batch);
  if (shape.dtype == Dtype::bf16) {
    delta_gates_kernel<__nv_bfloat16><<<grid, threads, 0, stream>>>(shape, args, tokens);
  } else {
    delta_gates_kernel<__half><<<grid, threads, 0, stream>>>(shape, args, tokens);
  }
  check_launch("delta_gates");
}

}  // namespace teratron::cuda
