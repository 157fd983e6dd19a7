// Launchers of the CUDA kernels behind delta_core.h, beside those of mamba/launchers.h. Raw device pointers;
// null where a tensor is undefined.
//
// In a ScanShape `heads` are those of values with `head_dim` channels, `groups` those of queries and keys
// with `state` channels. In ScanTokens `dt` is beta. A state S [K, V] is kept as its transpose. Names are
// those of delta_rule.h.
#pragma once

#include "teratron/kernels/mamba/launchers.h"

namespace teratron::cuda {

struct DeltaGateArgs {
  TokenRows b, a;  // [S, B, N]
  WeightVector dt_bias, A_log;
  float beta_scale;
  const int64_t* document;
};
/// Computes `tokens`.
TERATRON_LAUNCHER(void, delta_gates, const ScanShape& shape, const DeltaGateArgs& args,
                  const ScanTokens& tokens, CUstream_st* stream);

/// What each chunk needs of itself alone.
struct DeltaChunkParts {
  void* inverse;   // T [B, chunks, N, 64, 64]: of I + A
  void* scores;    // T [B, chunks, N, 64, 64]: P
  float* lengths;  // [2, B, H, 64 chunks]: 1 / |q|, 1 / |k|
};
/// q | k | v of the rows [S, B, H K | H K | N V].
TERATRON_LAUNCHER(void, delta_chunk_parts, const ScanShape& shape, const ScanTokens& tokens,
                  const TokenRows& qkv, const DeltaChunkParts& parts, CUstream_st* stream);

struct DeltaForward {
  TokenRows qkv;
  DeltaChunkParts parts;
  const float* initial;  // [B, N, K, V]
  void* y;               // [S, B, N V]
  void* states;          // T [B, chunks, N, V, K]: before each chunk
  void* corrected;       // V' [S, B, N V]
  float* last;           // [B, N, K, V]
};
TERATRON_LAUNCHER(void, delta_forward, const ScanShape& shape, const ScanTokens& tokens,
                  const DeltaForward& args, CUstream_st* stream);

/// From the last chunk to the first.
struct DeltaReverse {
  TokenRows qkv;
  DeltaChunkParts parts;
  const void* dy;        // [S, B, N V]
  const float* initial;  // [B, N, K, V]: the gradient of the last state
  void* dstates;         // T [B, chunks, N, V, K]: gradients of the states after the chunks
  void* dvalues;         // (I + A)^-T dV' [S, B, N V]
  float* first;          // [B, N, K, V]: the gradient of the first state
};
TERATRON_LAUNCHER(void, delta_reverse, const ScanShape& shape, const ScanTokens& tokens,
                  const DeltaReverse& args, CUstream_st* stream);

struct DeltaBackward {
  TokenRows qkv;
  const float* lengths;
  const void *states, *corrected;      // of DeltaForward
  const void *dy, *dstates, *dvalues;  // of DeltaReverse
  DeltaGateArgs gates;
  void* dqkv;        // [S, B, H K | H K | N V]
  TokenRows db, da;  // written
  float* sums;       // [B chunks, 2, N]: of da, and of the gradient of A_log
};
TERATRON_LAUNCHER(void, delta_backward, const ScanShape& shape, const ScanTokens& tokens,
                  const DeltaBackward& args, CUstream_st* stream);

struct DeltaStep {
  ScanShape shape;
  ConvStep conv;
  DeltaGateArgs gates;
  float* states;  // [slots, N, K, V]
  void* y;        // [R, N V]
};
TERATRON_LAUNCHER(void, delta_step, const DeltaStep& step, CUstream_st* stream);

}  // namespace teratron::cuda
