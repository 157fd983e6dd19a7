// Backward of taking the fused projection of queries, keys and values apart: three gradients become one.
//
// Shapes: q [S, B, G, P - 2, D], k and v [S, B, G, D], any strides but the last, which is 1; the result [S, B, G, P, D]
// contiguous: of each group its queries, its key and its value. Dtypes: f32, bf16, f16, f64. CPU and CUDA; asynchronous
// on the current CUDA stream. Bitwise reproducible.
#pragma once

#include "teratron/kernels/activation.h"
#include "teratron/kernels/rope.h"

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

struct MergedQkv {
  at::Tensor qkv;
  // f32 [G P D] (f64 for f64): the bias' gradient, on a GPU the sum before rounding; undefined where it is not wanted.
  at::Tensor column_sum;
};

/// `rotation` may be null; queries and keys are turned back. Where they are not and the gradients are merged already, the
/// result is the tensor whose parts they are.
MergedQkv merge_qkv(const QkvParts& gradients, const QkvRotation* rotation, const WantedSum& sum);

}  // namespace teratron
