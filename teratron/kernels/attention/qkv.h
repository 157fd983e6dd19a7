// The fused projection of queries, keys and values, and the backward of taking it apart: three gradients become one.
//
// Shapes: q [S, B, G, P - 2, D], k and v [S, B, G, D], any strides but the last, which is 1; the result [S, B, G, P, D]
// contiguous: of each group its queries, its key and its value. Dtypes: f32, bf16, f16, f64. CPU and CUDA; asynchronous
// on the current CUDA stream. Bitwise reproducible.
#pragma once

#include "teratron/kernels/attention/rope.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

struct QkvParts {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

/// Views of a tensor of the result's layout.
QkvParts parts_of(const at::Tensor& qkv);
/// The tensor of the result's layout whose parts these are; undefined where they lie otherwise.
at::Tensor whole_of(const QkvParts& parts);

/// How the forward rotated queries and keys.
struct QkvRotation {
  RopeTable table;
  RopeStyle style = RopeStyle::half;
  at::Tensor positions;
};

/// The rotation of a projection [T, G P D] of tokens [S, B], T = S B.
struct QkvTurn {
  QkvRotation rotation;
  int64_t per_group;  // P
  int64_t channels;   // D
};
/// Its queries and keys [S, B, G, P - 1, D]; a view.
at::Tensor queries_and_keys(const at::Tensor& qkv_TF, const QkvTurn& turn);
/// Turns them where they lie; contiguous.
void turn_qkv_(const at::Tensor& qkv_TF, const QkvTurn& turn);

struct MergedQkv {
  at::Tensor qkv;
  // f32 [G P D] (f64 for f64): the bias' gradient, on a GPU the sum before rounding; undefined where it is not wanted.
  at::Tensor column_sum;
};

/// `rotation` may be null; else queries and keys are turned back. Gradients that are the parts of a tensor of the result's layout
/// are used up: the result is that tensor, turned where it lies.
MergedQkv merge_qkv(const QkvParts& gradients, const QkvRotation* rotation, const WantedSum& sum);

}  // namespace teratron
