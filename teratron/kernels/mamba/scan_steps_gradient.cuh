// The gradients of the time steps of one head in a chunk, from the sums that scan_backward_cuda.cu collects.
#pragma once

#include "teratron/kernels/mamba/scan_tile.cuh"
#include "teratron/kernels/mamba/scan_tokens.cuh"

namespace teratron::cuda {

inline constexpr int scan_backward_warps = 16;

/// Each partial sum by the warp that has it; E, u and dS as in scan_backward_cuda.cu.
struct ScanHeadSums {
  float received[4][scan_chunk];                              // E over s, by tile of s
  float sent[4][scan_chunk];                                  // E over t, by tile of t
  float read[4][scan_chunk];                                  // dy_t . S C_t decayed, by columns of the state
  float written[4][scan_chunk];                               // u_s . dS B_s decayed, by channels
  float dux[4][scan_chunk];                                   // du_s . x_s, by channels
  float kept[scan_backward_warps], dyx[scan_backward_warps];  // dS . S, dy . x
};

/// By one warp; a lane has two tokens. Writes the gradient of what softplus is applied to, and the chunk's
/// terms of those of dt_bias, A_log and D.
template <typename T>
__device__ void scan_differentiate_steps(const ScanTokens& tokens, const ScanGradient& gradient,
                                         const ChunkPlace& place, int head, const ScanHeadSums& sum) {
  const ScanShape& shape = place.shape;
  const int lane = threadIdx.x % 32;
  const int64_t at = place.tokens_of(head) + 2 * lane;
  const float kept = warp_sum(lane < scan_backward_warps ? sum.kept[lane] : 0.0f);
  const float dD = warp_sum(lane < scan_backward_warps ? sum.dyx[lane] : 0.0f);
  float dux[2] = {0.0f, 0.0f}, dgamma[2] = {0.0f, 0.0f}, written = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      dux[i] += sum.dux[k][t];
      dgamma[i] += (sum.received[k][t] - sum.sent[k][t]) + (sum.read[k][t] - sum.written[k][t]);
      written += sum.written[k][t];
    }
  }
  written = warp_sum(written);
  if (lane == 31) dgamma[1] += written + tokens.start[at + 1] * kept;
  const float2 both = suffix_sums(make_float2(dgamma[0], dgamma[1]));
  const float dg[2] = {both.x, both.y}, decay = -expf(gradient.A_log[head]);
  float draw_sum = 0.0f, dlog_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float step = tokens.dt[at + i];
    const bool free = step > gradient.least && step < gradient.most;
    const float draw = free ? -expm1f(-step) * (dux[i] + decay * dg[i]) : 0.0f;
    draw_sum += draw;
    dlog_sum += decay * step * dg[i];
    if (2 * lane + i >= place.valid()) continue;
    T* const to = static_cast<T*>(const_cast<void*>(gradient.draw.data));
    to[place.row_of(2 * lane + i) * gradient.draw.stride + head] = round_to<T>(draw);
  }
  draw_sum = warp_sum(draw_sum);
  dlog_sum = warp_sum(dlog_sum);
  if (lane > 0) return;
  float* const to =
      gradient.sums + (int64_t{place.batch} * shape.chunks + place.chunk) * 3 * shape.heads + head;
  to[0] = draw_sum;
  to[shape.heads] = dlog_sum;
  to[2 * shape.heads] = dD;
}

}  // namespace teratron::cuda
