// Attention of one new token per sequence over keys and values in pages: softmax(scale q K^T + bias) V, split
// over the keys (Dao et al. 2023, "Flash-Decoding") so that few sequences still fill the GPU.
//
// Shapes: q [R, G, Q, D], Q query heads per group; k and v [R, G, D] of the new tokens; any strides but the
// last, which is 1; pages [slots, G, D] contiguous, slot = page * page_size + index; table i32 [R, P]
// contiguous; positions i64 [R], any stride. Row r attends to its positions 0 ... positions[r]. The last is
// its new token, which the kernel stores in its slot: pages must not be shared where rows write. Without k
// and v (cross attention) there is no new token and all positions are in the pages. Queries and new keys
// are rotated first, rounding as rope() does, if there is a rotation. Dtypes f32, bf16, f16; D <= 256 and D
// % 8 == 0. Sums in fp32. Asynchronous on the current CUDA stream; can be captured, as lengths are read on
// the device. The result of a row does not depend on the other rows, but on their number.
#pragma once

#include <optional>

#include "teratron/kernels/attention/qkv.h"

namespace teratron {

struct PagedDecodeInputs {
  at::Tensor q_RGQD;
  at::Tensor k_RGD = {};  // both undefined: no new token
  at::Tensor v_RGD = {};
  at::Tensor k_pages;
  at::Tensor v_pages;
  at::Tensor table_RP;
  at::Tensor positions_R;
};

struct PagedDecodeOptions {
  double scale = 1.0;
  double softcap = 0.0;  // c: scores are c tanh(scale q K^T / c) + bias; 0: none
  int64_t window = 0;    // number of keys that a query sees, its own included; 0: all
  int64_t chunk = 0;     // a query sees keys from the last multiple of this on; 0: all
  int64_t page_size = 16;
  at::Tensor alibi_slopes = {};  // f32 [N]; undefined: none
  /// f32 [N, 2 * L - 1], contiguous, with L >= P * page_size: biases of the heads for the distances
  /// -(L - 1), ..., L - 1 of a key from the last position; undefined: none. Not with ALiBi.
  at::Tensor distance_bias = {};
  /// f32 [N], contiguous: a score of each head that takes part in the sum of the softmax only; undefined:
  /// none.
  at::Tensor sinks = {};
  std::optional<QkvRotation> rotation = {};  // its positions are those of the rows
};

/// Whether the kernel supports heads like these; rows of other sequences must be computed otherwise.
bool paged_decode_supports(at::Device device, at::ScalarType dtype, int64_t channels);

/// Whether it rotates by such angles.
bool paged_decode_rotates(const QkvRotation& rotation, at::ScalarType dtype);

/// -> [R, G * Q * D].
at::Tensor paged_decode(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options);

}  // namespace teratron
