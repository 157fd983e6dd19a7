// The three GEMMs of a linear layer y = x W^T + b:
//
//   forward   y = x W^T        input gradient   dx = dy W        weight gradient   dW += dy^T x
//
// in the model's dtype or in FP8 (fp8_scaling.h). In FP8 a weight is cast once per step, and backward keeps
// the input in FP8 only.
#pragma once

#include <memory>

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/fp8_scaling.h"
#include "teratron/nn/parameter.h"

namespace teratron {

class Matmul {
 public:
  /// x [T, in] or dy [T, out] as the GEMMs read it.
  struct Operand {
    at::Tensor rows;       // for y and dx
    at::Tensor columns;    // for dW
    at::Tensor scale_inv;  // fp32 [1], multiplies the values; undefined: 1
  };
  /// Fused into the forward GEMM where possible; each may be undefined. RoPE is applied last and excludes a
  /// residual.
  struct Epilogue {
    at::Tensor bias_O;
    at::Tensor residual_TO;
    const QkvRope* rope = nullptr;
    AddedProduct added = {};
  };

  explicit Matmul(Parameter& weight) : weight_(weight) {}
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  virtual ~Matmul() = default;
  Parameter& weight() const { return weight_; }

  /// True: an operand is cast as a whole, with one scale. False: operands are used as they are, so callers
  /// may run the kernels of gemm.h on tiles of rows or with a fused activation, and may pass {dy, dy, factor}
  /// as an output gradient.
  virtual bool quantized() const = 0;
  virtual Operand input(const LazyTensor& x_TI, const Fp8Scaling::Outputs& outputs) = 0;
  virtual Operand output_grad(const LazyTensor& dy_TO) = 0;
  virtual at::Tensor forward(const Operand& x_TI, const Epilogue& epilogue) = 0;
  virtual at::Tensor input_grad(const Operand& dy_TO) = 0;
  virtual void accumulate_weight_grad(const Operand& dy_TO, const Operand& x_TI) = 0;

 protected:
  Parameter& weight_;
};

/// GEMMs with a weight [out, in]; in FP8 with `fp8` (may be null), which must outlive them and requires T, in
/// and out to be multiples of 16.
std::unique_ptr<Matmul> make_matmul(Parameter& weight, Fp8Scaling* fp8);

}  // namespace teratron
