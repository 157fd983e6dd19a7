// The three products of a linear layer y = x w^T + bias, alone and with what follows them.
//
// x [T, I], w [O, I], bias [O] or undefined, residual [T, O], of one float type. CPU and CUDA; asynchronous on the current
// CUDA stream. bf16 and f16 on a GPU: one GEMM of cuBLASLt, which rounds once, by the kernel that gemm_choice.h chooses.
//
// With an activation, or a rotation by halves of whole heads, bf16 on compute capability 9.0: one kernel of our own, which does
// that to a tile of the product while the next is multiplied, where there are tiles for all multiprocessors, widths are multiples
// of 8 and addresses of 16 bytes. Else one after the other; the results are rounded in the same places. Bitwise reproducible
// where cuBLAS is.
#pragma once

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {

/// x w^T + bias, into `y` [T, O] if that is given, contiguous.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                          at::Tensor y = {});
/// The gradient of y: values [T, O] times a number, `factor` [1] in f32 on their device; undefined: 1. A GEMM multiplies by it
/// before it rounds.
struct OutputGradient {
  at::Tensor values, factor;
  OutputGradient(at::Tensor of, at::Tensor times = {}) : values(std::move(of)), factor(std::move(times)) {}
};
/// dy w, into `dx` [T, I] if that is given, contiguous.
at::Tensor linear_input_gradient(const OutputGradient& dy, const at::Tensor& w, at::Tensor dx = {});
/// sum = (add: sum +) dy^T x, contiguous, [O, I] in the type of x or f32.
void linear_weight_gradient_(at::Tensor sum, const OutputGradient& dy, const at::Tensor& x, bool add);

/// residual + x w^T + bias; all contiguous.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                      const at::Tensor& residual);
/// x w^T + bias, rounded, whose queries and keys are then turned.
at::Tensor linear_turned(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                         const QkvTurn& turn);

/// Where results go; contiguous.
struct Activated {
  at::Tensor y;
  at::Tensor z;  // undefined: not wanted
};
/// y = activation(z) for z = x w^T + bias, rounded; gate|up of a gated activation.
void linear_activation(const Activated& into, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& bias, Activation activation);

struct ArgumentGradient {
  at::Tensor dz;  // where it goes, contiguous; undefined: to a new tensor
  WantedSum sum;  // over its rows
};
/// From the gradient dy [T, O] of activation(z) w^T: dz = activation'(z) * (dy w), of the rounded product, for z [T, I], or
/// [T, 2 I] of a gated activation. The sum, undefined unless wanted, is as column_sum gives it.
SummedGradient linear_activation_backward(const ArgumentGradient& into, const at::Tensor& dy,
                                          const at::Tensor& w, const at::Tensor& z, Activation activation);

}  // namespace teratron
