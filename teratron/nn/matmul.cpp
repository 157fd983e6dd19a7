#include "teratron/nn/matmul.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

class PlainMatMul : public MatMul {
 public:
  using MatMul::MatMul;

  Operand input(const Producer& x_TI, const Wanted&) override { return as_it_is(x_TI.plain()); }
  Operand output_gradient(const Producer& dy_TO) override { return as_it_is(dy_TO.plain()); }
  bool takes_plain_gradient() const override { return true; }
  at::Tensor forward(const Operand& x_TI, const Addends& addends) override {
    const auto& [bias_O, residual_TO, turn] = addends;
    TERATRON_ASSERT(turn == nullptr || !residual_TO.defined());
    if (turn != nullptr) return linear_turned(x_TI.rows, weight_.tensor, bias_O, *turn);
    if (residual_TO.defined()) return linear_add(x_TI.rows.contiguous(), weight_.tensor, bias_O, residual_TO);
    return linear_forward(x_TI.rows, weight_.tensor, bias_O);
  }
  void forward_activated(const Activated& into, const at::Tensor& x_TI, const at::Tensor& bias_O,
                         Activation activation) override {
    linear_activation(into, x_TI.contiguous(), weight_.tensor, bias_O, activation);
  }
  SummedGradient argument_gradient(const ArgumentGradient& into, const at::Tensor& dy_TO, const at::Tensor& z,
                                   Activation activation) override {
    return linear_activation_backward(into, dy_TO.contiguous(), weight_.tensor, z, activation);
  }
  bool takes_parts() const override { return true; }
  void forward_part(at::Tensor y_TO, const at::Tensor& x_TI, const at::Tensor& bias_O) override {
    linear_forward(x_TI, weight_.tensor, bias_O, std::move(y_TO));
  }
  void input_gradient_part(at::Tensor dx_TI, const at::Tensor& dy_TO) override {
    linear_input_gradient(dy_TO, weight_.tensor, std::move(dx_TI));
  }
  at::Tensor input_gradient(const Operand& dy_TO) override {
    return linear_input_gradient({dy_TO.rows, dy_TO.inverse}, weight_.tensor);
  }
  void add_weight_gradient(const Operand& dy_TO, const Operand& x_TI) override {
    teratron::add_weight_gradient(weight_, {dy_TO.columns, dy_TO.inverse}, x_TI.columns);
  }

 private:
  static Operand as_it_is(const at::Tensor& x) { return {x, x, {}}; }
};

class Fp8MatMul : public MatMul {
 public:
  Fp8MatMul(Parameter& weight, Fp8Scaling& scaling)
      : MatMul(weight), scaling_(scaling), layer_(scaling.add_layer(weight.name)) {}

  Operand input(const Producer& x_TI, const Wanted& wanted) override {
    return cast(x_TI, Role::input, wanted);
  }
  Operand output_gradient(const Producer& dy_TO) override { return cast(dy_TO, Role::output_gradient, {}); }
  at::Tensor forward(const Operand& x_TI, const Addends& addends) override {
    TERATRON_ASSERT(addends.turn == nullptr || !addends.residual_TO.defined());
    const Fp8Matrix& weight = weight_in_fp8();
    const Fp8Product product{
        .a = {x_TI.rows, x_TI.inverse}, .b = {weight.rows, weight.inverse}, .fast_accumulation = true};
    if (addends.residual_TO.defined()) return fp8_matmul_add(product, addends.bias_O, addends.residual_TO);
    at::Tensor y = fp8_matmul(product, addends.bias_O, weight_.tensor.scalar_type());
    if (addends.turn != nullptr) turn_qkv_(y, *addends.turn);
    return y;
  }
  at::Tensor input_gradient(const Operand& dy_TO) override {
    const Fp8Matrix& weight = weight_in_fp8();
    return fp8_matmul({.a = {dy_TO.rows, dy_TO.inverse}, .b = {weight.columns, weight.inverse}}, {},
                      weight_.tensor.scalar_type());
  }
  void add_weight_gradient(const Operand& dy_TO, const Operand& x_TI) override {
    if (!scaling_.options().weight_gradients) {
      teratron::add_weight_gradient(weight_, dy_TO.columns, x_TI.columns);
      return;
    }
    teratron::accumulate_gradient(weight_, [&](const at::Tensor& sum, bool add) {
      const Fp8Product product{.a = {dy_TO.columns, dy_TO.inverse}, .b = {x_TI.columns, x_TI.inverse}};
      if (add) {
        fp8_matmul_add_(sum, product);
      } else {
        fp8_matmul_out(sum, product);
      }
    });
  }

 private:
  using Role = Fp8Scaling::Role;

  Operand cast(const Producer& x, Role role, Wanted wanted) {
    if (!wanted.columns || scaling_.options().weight_gradients) {
      const Fp8Matrix matrix = scaling_.cast(x, {layer_, role}, wanted);
      return {matrix.rows, matrix.columns, matrix.inverse};
    }
    wanted.columns = false;
    const at::Tensor plain = x.plain();
    const Fp8Matrix matrix = scaling_.cast(plain, {layer_, role}, wanted);
    return {matrix.rows, plain, matrix.inverse};
  }

  const Fp8Matrix& weight_in_fp8() {
    if (cast_in_step_ == scaling_.step()) return cast_weight_;
    cast_weight_ = {};  // its memory may serve the new one
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

void MatMul::forward_activated(const Activated&, const at::Tensor&, const at::Tensor&, Activation) {
  TERATRON_ASSERT(false, "{} takes no activation", weight_.name);
}

SummedGradient MatMul::argument_gradient(const ArgumentGradient&, const at::Tensor&, const at::Tensor&,
                                         Activation) {
  TERATRON_ASSERT(false, "{} takes no activation", weight_.name);
}

void MatMul::forward_part(at::Tensor, const at::Tensor&, const at::Tensor&) {
  TERATRON_ASSERT(false, "{} takes its input whole", weight_.name);
}

void MatMul::input_gradient_part(at::Tensor, const at::Tensor&) {
  TERATRON_ASSERT(false, "{} takes its gradient whole", weight_.name);
}

std::unique_ptr<MatMul> make_matmul(Parameter& weight, Fp8Scaling* fp8) {
  if (fp8) return std::make_unique<Fp8MatMul>(weight, *fp8);
  return std::make_unique<PlainMatMul>(weight);
}

}  // namespace teratron
