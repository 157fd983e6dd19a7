// The three products of a linear layer y = x W^T + b, in the number format that it was built with:
//
//   forward   y = x W^T        input gradient   dx = dy W        weight gradient   dW += dy^T x
//
// In the model's own dtype, or in FP8 (fp8_scaling.h), where a weight is cast once per step and an input is kept for
// backward in FP8 alone.
#pragma once

#include <memory>

#include "teratron/kernels/gemm/gemm.h"
#include "teratron/nn/fp8_scaling.h"
#include "teratron/nn/parameter.h"

namespace teratron {

class MatMul {
 public:
  /// x [T, in] or dy [T, out] as the products take it.
  struct Operand {
    at::Tensor rows;     // for y and dx
    at::Tensor columns;  // for dW
    at::Tensor inverse;  // [1], what the numbers must be multiplied by: 1 / scale of FP8; undefined: 1
  };
  using Wanted = Fp8Scaling::Wanted;

  explicit MatMul(Parameter& weight) : weight_(weight) {}
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;
  virtual ~MatMul() = default;
  Parameter& weight() { return weight_; }

  virtual Operand input(const Producer& x_TI, const Wanted& wanted) = 0;
  virtual Operand output_gradient(const Producer& dy_TO) = 0;
  /// Whether an output gradient may be rows and columns as they are, with `inverse` or without.
  virtual bool takes_plain_gradient() const { return false; }
  /// What is added to the product; each may be undefined. Queries and keys are turned after that, if there is a turn; without a
  /// residual.
  struct Addends {
    at::Tensor bias_O;
    at::Tensor residual_TO;
    const QkvTurn* turn = nullptr;
  };
  virtual at::Tensor forward(const Operand& x_TI, const Addends& addends) = 0;
  /// Whether the four functions below are there. Rows can be multiplied by them while others are not there yet or already under
  /// way, and an activation that comes after y, or before x, computed within the product.
  virtual bool takes_parts() const { return false; }
  /// activation(x W^T + b) and its argument; b may be undefined.
  virtual void forward_activated(const Activated& into, const at::Tensor& x_TI, const at::Tensor& bias_O,
                                 Activation activation);
  /// The gradient of z, where x = activation(z), and its sum over the rows.
  virtual SummedGradient argument_gradient(const ArgumentGradient& into, const at::Tensor& dy_TO,
                                           const at::Tensor& z, Activation activation);
  /// y = x W^T + b of some rows; b may be undefined.
  virtual void forward_part(at::Tensor y_TO, const at::Tensor& x_TI, const at::Tensor& bias_O);
  /// dx = dy W of some rows.
  virtual void input_gradient_part(at::Tensor dx_TI, const at::Tensor& dy_TO);
  virtual at::Tensor input_gradient(const Operand& dy_TO) = 0;
  virtual void add_weight_gradient(const Operand& dy_TO, const Operand& x_TI) = 0;

 protected:
  Parameter& weight_;
};

/// The products with a weight [out, in]; with `fp8`, which must outlive them, in FP8. T, in and out are multiples of 16
/// there.
std::unique_ptr<MatMul> make_matmul(Parameter& weight, Fp8Scaling* fp8);

}  // namespace teratron
