// A linear layer's product with the activation, or the rotation, that follows it, and its gradient with the activation before
// it, each in one kernel. bf16, for compute capability 9.0. Raw device pointers.
#pragma once

#include <cstdint>

#include "teratron/kernels/common/row_sum.h"
#include "teratron/kernels/pointwise/activation_kind.h"

struct CUstream_st;

namespace teratron::cuda {

/// An activation's result is [rows, width], its argument z [rows, width], or gate|up [rows, 2 width] of a gated one.
struct GemmActivationShape {
  int64_t rows, width, k;
  Activation activation;
};

/// z = x [rows, k] w^T (+ bias), rounded; out = activation(z). w [width of z, k].
struct GemmActivationForward {
  const void *x, *w;
  const void* bias;  // [width of z] or null
  void* z;           // or null: not wanted
  void* out;
};

/// dz = activation'(z) * (dy [rows, k] w), of the rounded product. w [k, width].
struct GemmActivationBackward {
  const void *dy, *w, *z;
  void* dz;
  RowSum sum;  // of dz before it is rounded
};

/// Rotation of queries and keys, by halves of all channels (rope.h).
struct GemmTurn {
  const float *cos, *sin;    // [positions, channels / 2]
  const int64_t* positions;  // of row s * batch + b: positions[s * stride_s + b * stride_b]
  int64_t stride_s, stride_b;
  int batch;
  int per_group;  // heads: queries, a key and a value
  int channels;   // of a head
};

/// Whether the current device has these kernels, and the shape has tiles (of 128 x 256, two below each other) for all its
/// multiprocessors. Short products have tiles of 128 x 192 (gemm_activation_tile.cuh).
bool has_gemm_activation(const GemmActivationShape& shape);
/// Width and k must be multiples of 8, and pointers of 16 bytes.
void gemm_activation_forward(const GemmActivationShape& shape, const GemmActivationForward& args,
                             CUstream_st* stream);
/// How many rows of partial sums the backward writes.
int64_t gemm_activation_partials(const GemmActivationShape& shape);
void gemm_activation_backward(const GemmActivationShape& shape, const GemmActivationBackward& args,
                              CUstream_st* stream);

/// out [rows, width] = x [rows, k] w^T (+ bias), rounded, then turned and rounded again.
struct GemmTurnArgs {
  const void *x, *w;
  const void* bias;  // [width] or null
  void* out;
  GemmTurn turn;
};
/// Whether the kernel is there, as above, for heads of so many channels, and does not lose to a product and a pass.
bool has_gemm_turn(const GemmActivationShape& shape, int64_t channels);
/// As gemm_activation_forward; shape.activation is of no meaning.
void gemm_turn(const GemmActivationShape& shape, const GemmTurnArgs& args, CUstream_st* stream);

}  // namespace teratron::cuda
