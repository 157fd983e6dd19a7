// Launchers of the CUDA kernels behind mamba_core.h; the gated delta net has the convolution and the gated
// norm from here, too. Raw device pointers; null where a tensor is undefined.
//
// A row is a token of a sequence: row s * batch + b of token s of sequence b. Values of heads are in T (bf16
// or f16), what is summed over many of them in f32.
#pragma once

#include "teratron/kernels/common/launcher.h"

namespace teratron::cuda {

/// Tokens that the kernels take together.
inline constexpr int scan_chunk = 64;
/// What they are compiled for: at most so many channels of a head and of a state.
inline constexpr int max_scan_head_dim = 128, max_scan_state = 128;

/// Rows with a distance of `stride` elements.
struct TokenRows {
  const void* data;
  int64_t stride;
};

/// Weights in T, or in f32.
struct WeightVector {
  const void* data;  // null: there are none
  bool wide;         // f32
};

// --- Causal depthwise convolution, then silu ---

inline constexpr int max_conv_width = 4;

struct CausalConv {
  int batch, tokens, channels, width;  // channels: a multiple of 4
  Dtype dtype;
  TokenRows x;
  const void* before;       // [B, W - 1, C]: the inputs before the first token
  const int64_t* document;  // [S, B], equal for tokens of one document
  WeightVector weight;      // [C, W]
  WeightVector bias;        // [C]
};
/// y [S, B, C].
TERATRON_LAUNCHER(void, causal_conv, const CausalConv& conv, void* y, CUstream_st* stream);

struct CausalConvGradient {
  const void* dy;  // [S, B, C]
  void* dx;        // rows of x's stride
  float* dweight;  // [rows, W + 1, C], the bias last: the sum over the rows is the gradient
};
TERATRON_LAUNCHER(int64_t, causal_conv_gradient_rows, const CausalConv& conv);
TERATRON_LAUNCHER(void, causal_conv_backward, const CausalConv& conv, const CausalConvGradient& gradient,
                  CUstream_st* stream);

// --- The recurrence, in chunks ---

/// Compute capability 8.0 or above.
TERATRON_LAUNCHER(bool, scan_supported);

struct ScanShape {
  int batch, tokens, chunks, heads, groups, head_dim, state;
  Dtype dtype;
};

/// What the kernels know of each token; [B, H, 64 chunks] in f32, `first` [B, 64 chunks].
struct ScanTokens {
  float* dt;     // 0 after the last token
  float* gamma;  // the sum of the logarithms of decays from the chunk's first token to this one
  // Decays from the state before the chunk to the token, and from the token to the state after it; 0 from
  // one document to another.
  float *start, *end;
  int* first;  // where its document starts in the chunk; -1: before it. Null: one document
};

/// Computes `first` [B, 64 chunks] from documents [S, B]; both may be null.
TERATRON_LAUNCHER(void, document_starts, const ScanShape& shape, const int64_t* document, int* first,
                  CUstream_st* stream);

struct TimeStepArgs {
  TokenRows raw;  // [S, B, H]
  const float *bias, *A_log;
  float least, most;
  const int64_t* document;
};
/// Computes `tokens`.
TERATRON_LAUNCHER(void, time_steps, const ScanShape& shape, const TimeStepArgs& args,
                  const ScanTokens& tokens, CUstream_st* stream);

/// S <- carry S + sum over a chunk of w_t a_t b_t^T, from chunk to chunk:
///   forward   w_t = dt_t (decay from t to the chunk's end), chunks in order
///   reversed  w_t = decay from the chunk's start to t, chunks from the last to the first
struct ScanStates {
  TokenRows a, b;        // [S, B, H P], [S, B, G N]
  const float* initial;  // [B, H, P, N]
  void* states;          // T [B, chunks, H, P, N]: S before each chunk (reversed: after it)
  float* last;           // [B, H, P, N]
  bool reversed;
};
TERATRON_LAUNCHER(void, scan_states, const ScanShape& shape, const ScanTokens& tokens, const ScanStates& args,
                  CUstream_st* stream);

/// x | B | C of the rows [S, B, H P | G N | G N].
struct ScanRows {
  TokenRows xbc;
  const void* states;
  const float* D;  // [H]
};
/// y [S, B, H P].
TERATRON_LAUNCHER(void, scan_output, const ScanShape& shape, const ScanTokens& tokens, const ScanRows& rows,
                  void* y, CUstream_st* stream);

/// Parts of the heads of a group whose sums dB and dC are separate.
TERATRON_LAUNCHER(int, scan_parts, const ScanShape& shape);
struct ScanGradient {
  const void* dy;       // [S, B, H P]
  const void* dstates;  // T [B, chunks, H, P, N], of the states after the chunks
  const float* A_log;
  float least, most;  // limits of dt
  TokenRows dx;       // [S, B, H P], written
  float* dbc;         // [parts, S, B, G N | G N]
  TokenRows draw;     // T [S, B, H], written: of what softplus is applied to
  float* sums;        // [B chunks, 3, H]: of draw, dA_log and dD
};
TERATRON_LAUNCHER(void, scan_backward, const ScanShape& shape, const ScanTokens& tokens, const ScanRows& rows,
                  const ScanGradient& gradient, CUstream_st* stream);

// --- One token of each of R sequences ---

/// The convolution of a row, and where its states are: at row from[r] before the token, none if that is below
/// 0, at row to[r], another one, after it.
struct ConvStep {
  int rows, channels, width;
  TokenRows x;   // [R, C]
  void* inputs;  // T [slots, W - 1, C]
  WeightVector weight, bias;
  const int64_t *from, *to;
};
struct ScanStep {
  ScanShape shape;  // heads, groups, head_dim, state and dtype; state: a multiple of 4
  ConvStep conv;
  TokenRows raw;  // [R, H]
  const float *dt_bias, *A_log, *D;
  float least, most;
  float* states;  // [slots, H, P, N]
  void* y;        // [R, H P]
};
TERATRON_LAUNCHER(void, scan_step, const ScanStep& step, CUstream_st* stream);

// --- Gate and norm ---

enum class GatePlace : uint8_t { before_norm, after_norm, alone };

inline constexpr int max_norm_width = 8192;

struct GatedNormShape {
  int64_t rows;
  int groups, width;   // channels of each group: a multiple of 8
  bool shared_weight;  // [width], of all groups; else [groups, width]
  GatePlace gate;
  Dtype dtype;
  float eps;
};
struct GatedNormArgs {
  const void* y;  // [rows, groups, width]
  TokenRows z;
  WeightVector weight;  // none without a norm
};
TERATRON_LAUNCHER(void, gated_norm, const GatedNormShape& shape, const GatedNormArgs& args, void* out,
                  CUstream_st* stream);
struct GatedNormGradient {
  const void* dout;
  void* dy;
  TokenRows dz;    // written
  float* dweight;  // [gradient rows, groups, width]
};
TERATRON_LAUNCHER(int64_t, gated_norm_gradient_rows, const GatedNormShape& shape);
TERATRON_LAUNCHER(void, gated_norm_backward, const GatedNormShape& shape, const GatedNormArgs& args,
                  const GatedNormGradient& gradient, CUstream_st* stream);

}  // namespace teratron::cuda
