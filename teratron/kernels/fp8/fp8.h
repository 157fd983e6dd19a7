// Matrices in FP8 with one scale per tensor, and their products (Micikevicius et al. 2022).
//
// A matrix x is held as q = x * scale, rounded to the nearest value of the format, ties to even; what lies beyond
// the largest finite value becomes that value, NaN stays NaN. It is read as q * inverse, inverse = 1 / scale. Scales
// and magnitudes are fp32 [1] on the matrix' device, so that the host never waits for one.
//
// Hopper multiplies FP8 only with both operands contiguous along the summed dimension. Therefore one pass over x
// writes it as it is and transposed.
//
// Shapes: rows and columns are multiples of 16. Dtypes of x: f32, bf16, f16. CPU, and GPUs of compute capability 8.9 or
// more; asynchronous on the current CUDA stream. The CPU multiplies the same eight-bit values in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/kernels/fp8/fp8_format.h"

namespace teratron {

struct Fp8Scale {
  at::Tensor scale;
  at::Tensor inverse;
};

/// The scale that maps the largest magnitude of x on that of the format; 1 where x is zero or not finite.
Fp8Scale fp8_scale_of(const at::Tensor& x, Fp8Format format);

struct Fp8Cast {
  Fp8Format format = Fp8Format::e4m3;
  Fp8Scale scale;
  at::Tensor amax =
      {};  // raised to the largest magnitude of x where that is more (NaN is most); may be undefined
  bool rows = true;
  bool columns = true;
};

struct Fp8Matrix {
  at::Tensor rows;     // [R, C]
  at::Tensor columns;  // the transpose [C, R]; contiguous, too
  at::Tensor inverse;
};

/// x [R, C] contiguous; the parts that are not wanted stay undefined.
Fp8Matrix cast_to_fp8(const at::Tensor& x, const Fp8Cast& cast);

/// Values [R, K] in FP8 and what they are multiplied by.
struct Fp8Operand {
  at::Tensor values;
  at::Tensor inverse;  // on a GPU at a multiple of 16 bytes
};

struct Fp8Product {
  Fp8Operand a;  // [M, K]
  Fp8Operand b;  // [N, K]
  /// Sums are kept in the tensor cores' own, shorter format between steps: faster, and good enough for activations.
  bool fast_accumulation = false;
};

/// a b^T (+ bias [N], undefined: none) [M, N] in `type`: f32 (without bias on a GPU), bf16 or f16.
at::Tensor fp8_matmul(const Fp8Product& product, const at::Tensor& bias, at::ScalarType type);
/// residual [M, N] + a b^T (+ bias [N], undefined: none), in the residual's type: bf16 or f16 on a GPU.
at::Tensor fp8_matmul_add(const Fp8Product& product, const at::Tensor& bias, const at::Tensor& residual);
/// out [M, N] fp32 = a b^T.
void fp8_matmul_out(const at::Tensor& out, const Fp8Product& product);
/// sum [M, N] fp32 += a b^T.
void fp8_matmul_add_(const at::Tensor& sum, const Fp8Product& product);

}  // namespace teratron
