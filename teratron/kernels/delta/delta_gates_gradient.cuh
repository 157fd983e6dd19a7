// The gradients of b and a of one head in a chunk, from the sums that delta_backward_cuda.cu collects.
#pragma once

#include "teratron/kernels/delta/delta_tile.cuh"
#include "teratron/kernels/mamba/scan_tokens.cuh"
#include "teratron/kernels/mamba/weight_at.cuh"

namespace teratron::cuda {

inline constexpr int delta_backward_warps = 16;

/// Each partial sum by the warp that has it; names as in delta_backward_cuda.cu.
struct DeltaHeadSums {
  float rows[4][scan_chunk], columns[4][scan_chunk];  // of dP P + dA A
  float corrections[4][scan_chunk];                   // rows of dA Gamma k k^T
  float read[4][scan_chunk];                          // q . what dq has of S
  float erased[4][scan_chunk];                        // k . X S^T
  float written[4][scan_chunk];                       // k . what dk has of D
  float values[scan_chunk];                           // X . v
  float kept[delta_backward_warps];                   // D . S
};
static_assert(sizeof(DeltaHeadSums) % 16 == 0);

/// By one warp; a lane has two tokens. Writes the gradients of b and a, and the chunk's terms of those of
/// dt_bias and A_log.
template <typename T>
__device__ void delta_differentiate_gates(const ScanTokens& tokens, const DeltaBackward& args,
                                          const ChunkPlace& place, int head, const DeltaHeadSums& sum) {
  const ScanShape& shape = place.shape;
  const int lane = threadIdx.x % 32;
  const int64_t at = place.tokens_of(head) + 2 * lane;
  const float kept = warp_sum(lane < delta_backward_warps ? sum.kept[lane] : 0.0f);
  float dgamma[2], dbeta[2], beta[2], written = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const float start = tokens.start[at + i];
    beta[i] = tokens.dt[at + i];
    dbeta[i] = sum.values[t];
    dgamma[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float erased = start * sum.erased[j][t];
      dbeta[i] += sum.corrections[j][t] - erased;
      dgamma[i] +=
          (sum.rows[j][t] - sum.columns[j][t]) + (sum.read[j][t] - beta[i] * erased) - sum.written[j][t];
      written += sum.written[j][t];
    }
  }
  written = warp_sum(written);
  if (lane == 31) dgamma[1] += written + tokens.start[at + 1] * kept;
  const float2 both = suffix_sums(make_float2(dgamma[0], dgamma[1]));
  const float dg[2] = {both.x, both.y};
  const float rate = expf(weight_at<T>(args.gates.A_log, head)),
              bias = weight_at<T>(args.gates.dt_bias, head);
  float da_sum = 0.0f, dlog_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    if (t >= place.valid()) continue;
    const int64_t row = place.row_of(t);
    const float raw =
        widen(static_cast<const T*>(args.gates.a.data)[row * args.gates.a.stride + head]) + bias;
    const float da = -rate * dg[i] / (1.0f + expf(-raw));
    da_sum += da;
    dlog_sum -= rate * softplus(raw) * dg[i];
    const auto write = [&](const TokenRows& to, float x) {
      static_cast<T*>(const_cast<void*>(to.data))[row * to.stride + head] = round_to<T>(x);
    };
    write(args.da, da);
    write(args.db, dbeta[i] * beta[i] * (1.0f - beta[i] / args.gates.beta_scale));
  }
  da_sum = warp_sum(da_sum);
  dlog_sum = warp_sum(dlog_sum);
  if (lane > 0) return;
  float* const to = args.sums + (int64_t{place.batch} * shape.chunks + place.chunk) * 2 * shape.heads + head;
  to[0] = da_sum;
  to[shape.heads] = dlog_sum;
}

}  // namespace teratron::cuda
