// The three GEMMs of a linear layer y = x w^T + bias, alone and fused with what follows.
//
// x [T, I], w [O, I], bias [O] or undefined, residual [T, O], of one float dtype. CPU and CUDA; asynchronous
// on the current CUDA stream. bf16 and f16 on a GPU: one cuBLASLt GEMM that rounds once, with the algorithm
// that gemm_heuristic.h selects. Bitwise reproducible where cuBLAS is. Forward with at most 8 rows, as when
// text is generated, is one kernel of ours for residual, activation and the norm of x too, limited by the
// reading of w.
//
// Fused with an activation, or with RoPE of style `half` over whole heads: bf16 on compute capability 9.0
// runs one warp-specialized kernel of ours, whose epilogue overlaps the next tile's main loop. The shape must
// have tiles for all SMs, widths be multiples of 8 and addresses 16-byte aligned. Otherwise two kernels run,
// rounding in the same places.
// Measurements: docs/notes/fused_gemm.md.
#pragma once

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

/// x w^T + bias, written to `y` [T, O], contiguous, if defined.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                          at::Tensor y = {});
/// dy = values [T, O] * scale [1] (f32, on the same device; undefined: 1). A GEMM applies the scale before
/// rounding.
struct OutputGradient {
  at::Tensor values, scale;
  OutputGradient(at::Tensor dy, at::Tensor dy_scale = {})
      : values(std::move(dy)), scale(std::move(dy_scale)) {}
};
/// dy w, written to `dx` [T, I], contiguous, if defined.
at::Tensor linear_input_gradient(const OutputGradient& dy, const at::Tensor& w, at::Tensor dx = {});
/// sum = (add: sum +) dy^T x; contiguous [O, I] in x's dtype or f32.
void linear_weight_gradient_(at::Tensor sum, const OutputGradient& dy, const at::Tensor& x, bool add);

/// A second product x [T, R] w^T for w [O, R], summed with a GEMM's: the low-rank one of an adapter.
/// Contiguous, w also as the transpose of a contiguous tensor. Undefined: none.
struct AddedProduct {
  at::Tensor x, w;
  bool defined() const { return x.defined(); }
};
/// y += x w^T; y [T, O] contiguous.
void add_product_(const at::Tensor& y, const AddedProduct& added);

/// residual + x w^T + bias; all contiguous.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual);

/// x w^T + bias + the added product. Our fused kernels round the sum once if R is a multiple of 8, others
/// also before they add the product.
struct LinearSum {
  at::Tensor x, w, bias = {};
  AddedProduct added = {};
};
/// The sum, rounded; then RoPE on queries and keys.
at::Tensor linear_rope(const LinearSum& sum, const QkvRope& rope);

/// Contiguous destinations.
struct ActivationOutputs {
  at::Tensor y;
  at::Tensor z;  // pre-activation; undefined: not stored
};
/// y = activation(z) for z, the rounded sum; z is gate|up if gated.
void linear_activation(const ActivationOutputs& outputs, const LinearSum& sum, Activation activation);

/// x [T, I] that the GEMM normalizes, rounding where norm_forward() does.
struct NormedRows {
  at::Tensor x;
  NormParameters parameters;
  NormOptions options;
};
/// Whether it can: a few rows on a GPU, and parameters of x's dtype.
bool normalizes_rows(const NormedRows& rows, const at::Tensor& w);
/// norm(x) w^T + bias.
at::Tensor linear_normed(const NormedRows& rows, const at::Tensor& w, const at::Tensor& bias);
/// activation(norm(x) w^T + bias), rounded before the activation.
at::Tensor linear_normed_activation(const NormedRows& rows, const at::Tensor& w, const at::Tensor& bias,
                                    Activation activation);

/// The pre-activation gradient dz = activation'(z) * (dy w), of the rounded product, from the gradient
/// dy [T, O] of activation(z) w^T; z, dz [T, I], or [T, 2 I] if gated. dbias: column sum of dz. `added` is
/// summed with the product.
struct OutputProduct {
  at::Tensor dy, w;
  AddedProduct added = {};
};
ActivationGradients linear_activation_backward(const ActivationGradOutputs& outputs,
                                               const OutputProduct& product, const at::Tensor& z,
                                               Activation activation);

}  // namespace teratron
