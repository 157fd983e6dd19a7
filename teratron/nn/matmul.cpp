#include "teratron/nn/matmul.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// In the model's dtype.
class DenseMatmul : public Matmul {
 public:
  using Matmul::Matmul;

  bool quantized() const override { return false; }
  Operand input(const LazyTensor& x_TI, const Fp8Scaling::Outputs&) override { return operand(x_TI); }
  Operand output_grad(const LazyTensor& dy_TO) override { return operand(dy_TO); }
  at::Tensor forward(const Operand& x_TI, const Epilogue& epilogue) override {
    const auto& [bias_O, residual_TO, rope, added] = epilogue;
    TERATRON_ASSERT(rope == nullptr || !residual_TO.defined());
    if (rope != nullptr) return linear_rope({x_TI.rows, weight_.tensor, bias_O, added}, *rope);
    const at::Tensor y = residual_TO.defined()
                             ? linear_add(x_TI.rows.contiguous(), weight_.tensor, bias_O, residual_TO)
                             : linear_forward(x_TI.rows, weight_.tensor, bias_O);
    add_product_(y, added);
    return y;
  }
  at::Tensor input_grad(const Operand& dy_TO) override {
    return linear_input_gradient({dy_TO.rows, dy_TO.scale_inv}, weight_.tensor);
  }
  void accumulate_weight_grad(const Operand& dy_TO, const Operand& x_TI) override {
    teratron::accumulate_weight_grad(weight_, {dy_TO.columns, dy_TO.scale_inv}, x_TI.columns);
  }

 private:
  static Operand operand(const LazyTensor& lazy) {
    const at::Tensor x = lazy.compute();
    return {x, x, {}};
  }
};

class Fp8Matmul : public Matmul {
 public:
  Fp8Matmul(Parameter& weight, Fp8Scaling& scaling)
      : Matmul(weight), scaling_(scaling), layer_(scaling.add_layer(weight.name, weight.tensor.numel())) {}

  bool quantized() const override { return true; }
  Operand input(const LazyTensor& x_TI, const Fp8Scaling::Outputs& outputs) override {
    return cast(x_TI, Role::input, outputs);
  }
  Operand output_grad(const LazyTensor& dy_TO) override {
    return cast(dy_TO, Role::output_grad, {.columns = weight_.options.trainable});
  }
  at::Tensor forward(const Operand& x_TI, const Epilogue& epilogue) override {
    const auto& [bias_O, residual_TO, rope, added] = epilogue;
    TERATRON_ASSERT(rope == nullptr || !residual_TO.defined());
    const Fp8Matrix& weight = fp8_weight();
    const Fp8Product product{
        .a = {x_TI.rows, x_TI.scale_inv}, .b = {weight.rows, weight.scale_inv}, .fast_accumulation = true};
    const at::Tensor y = residual_TO.defined() ? fp8_matmul_add(product, bias_O, residual_TO)
                                               : fp8_matmul(product, bias_O, weight_.tensor.scalar_type());
    add_product_(y, added);
    if (rope != nullptr) apply_rope_(y, *rope);
    return y;
  }
  at::Tensor input_grad(const Operand& dy_TO) override {
    const Fp8Matrix& weight = fp8_weight();
    return fp8_matmul({.a = {dy_TO.rows, dy_TO.scale_inv}, .b = {weight.columns, weight.scale_inv}}, {},
                      weight_.tensor.scalar_type());
  }
  void accumulate_weight_grad(const Operand& dy_TO, const Operand& x_TI) override {
    if (!scaling_.options().weight_gradients) {
      teratron::accumulate_weight_grad(weight_, dy_TO.columns, x_TI.columns);
      return;
    }
    accumulate_grad(weight_, [&](const at::Tensor& sum, bool add) {
      const Fp8Product product{.a = {dy_TO.columns, dy_TO.scale_inv}, .b = {x_TI.columns, x_TI.scale_inv}};
      if (add) {
        fp8_matmul_add_(sum, product);
      } else {
        fp8_matmul_out(sum, product);
      }
    });
  }

 private:
  using Role = Fp8Scaling::Role;

  Operand cast(const LazyTensor& x, Role role, Fp8Scaling::Outputs outputs) {
    if (!outputs.columns || scaling_.options().weight_gradients) {
      const Fp8Matrix matrix = scaling_.cast(x, {layer_, role}, outputs);
      return {matrix.rows, matrix.columns, matrix.scale_inv};
    }
    outputs.columns = false;
    const at::Tensor dense = x.compute();
    const Fp8Matrix matrix = scaling_.cast(dense, {layer_, role}, outputs);
    return {matrix.rows, dense, matrix.scale_inv};
  }

  const Fp8Matrix& fp8_weight() {
    if (cast_in_step_ == scaling_.step()) return cast_weight_;
    cast_weight_ = {};  // frees its memory for the next cast
    cast_weight_ = scaling_.cast(weight_.tensor, {layer_, Role::weight}, {});
    cast_in_step_ = scaling_.step();
    return cast_weight_;
  }

  Fp8Scaling& scaling_;
  int64_t layer_;
  Fp8Matrix cast_weight_;
  int64_t cast_in_step_ = -1;
};

}  // namespace

std::unique_ptr<Matmul> make_matmul(Parameter& weight, Fp8Scaling* fp8) {
  if (fp8) return std::make_unique<Fp8Matmul>(weight, *fp8);
  return std::make_unique<DenseMatmul>(weight);
}

}  // namespace teratron
