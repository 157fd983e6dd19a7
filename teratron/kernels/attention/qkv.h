// The fused QKV projection, and the backward of splitting it: three gradients become one.
//
// Shapes: q [S, B, G, P - 2, D], k and v [S, B, G, D], any strides but the last, which is 1; packed QKV
// [S, B, G, P, D] contiguous: per group its queries, its key and its value. Dtypes: f32, bf16, f16, f64. CPU
// and CUDA; asynchronous on the current CUDA stream. Bitwise reproducible.
// Measurements: docs/notes/attention.md.
#pragma once

#include "teratron/kernels/attention/rope.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

struct QkvParts {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

/// Views of packed QKV.
QkvParts unpack_qkv(const at::Tensor& qkv);
/// The packed QKV that these are the views of; undefined if they are not.
at::Tensor packed_qkv(const QkvParts& parts);

/// The forward's rotation of queries and keys.
struct QkvRotation {
  RopeTable table;
  RopeStyle style = RopeStyle::half;
  at::Tensor positions;
};

/// RoPE of a projection [T, G P D] of tokens [S, B], T = S B.
struct QkvRope {
  QkvRotation rotation;
  int64_t per_group;  // P
  int64_t channels;   // D
};
/// Its queries and keys [S, B, G, P - 1, D]; a view.
at::Tensor queries_and_keys(const at::Tensor& qkv_TF, const QkvRope& rope);
/// Rotates them in place; contiguous.
void apply_rope_(const at::Tensor& qkv_TF, const QkvRope& rope);

struct MergedQkv {
  at::Tensor qkv;
  at::Tensor
      dbias;  // f32 [G P D] (f64 for f64): column sum, before rounding on a GPU; undefined if not requested
};

/// Packs the gradients of q, k and v. Undoes `rotation` on queries and keys unless null. If the gradients are
/// views of packed QKV, they are overwritten: the result is that tensor, rotated in place.
MergedQkv merge_qkv(const QkvParts& gradients, const QkvRotation* rotation,
                    const std::optional<GradSink>& dbias_sink);

}  // namespace teratron
