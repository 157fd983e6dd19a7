#include "teratron/nn/moe/expert_matmul.h"

#include "teratron/kernels/fp8/grouped_fp8.h"

namespace teratron {

namespace {

// In the model's dtype.
class DenseExpertMatmul : public ExpertMatmul {
 public:
  using ExpertMatmul::ExpertMatmul;

  Operand input(const at::Tensor& x_RI, const GroupedGemm&, const Fp8Scaling::Outputs&) override {
    return {x_RI, x_RI, {}};
  }
  Operand output_grad(const at::Tensor& dy_RO, const GroupedGemm&) override { return {dy_RO, dy_RO, {}}; }
  at::Tensor forward(const Operand& x_RI, const GroupedGemm& gemm) override {
    return gemm.forward(x_RI.rows, weight());
  }
  at::Tensor input_grad(const Operand& dy_RO, const GroupedGemm& gemm) override {
    return gemm.input_grad(dy_RO.rows, weight());
  }
  void accumulate_weight_grad(const Operand& dy_RO, const Operand& x_RI, const GroupedGemm& gemm) override {
    gemm.accumulate_weight_grad(dy_RO.columns, x_RI.columns, weight());
  }
};

class Fp8ExpertMatmul : public ExpertMatmul {
 public:
  Fp8ExpertMatmul(ExpertParameters weight, const std::string& name, Fp8Scaling& scaling)
      : ExpertMatmul(std::move(weight)), scaling_(scaling) {
    const int64_t elements = std::ssize(this->weight()) * this->weight().front()->tensor.numel();
    layer_ = scaling.add_layer(name, elements);
  }

  Operand input(const at::Tensor& x_RI, const GroupedGemm& gemm,
                const Fp8Scaling::Outputs& outputs) override {
    return cast(x_RI, Role::input, gemm, outputs);
  }
  Operand output_grad(const at::Tensor& dy_RO, const GroupedGemm& gemm) override {
    return cast(dy_RO, Role::output_grad, gemm, {.columns = !is_frozen()});
  }
  at::Tensor forward(const Operand& x_RI, const GroupedGemm& gemm) override {
    return fp8_grouped_forward(matrix(x_RI), fp8_weight(), gemm.fp8_groups(), dtype());
  }
  at::Tensor input_grad(const Operand& dy_RO, const GroupedGemm& gemm) override {
    return fp8_grouped_input_gradient(matrix(dy_RO), fp8_weight(), gemm.fp8_groups(), dtype());
  }
  void accumulate_weight_grad(const Operand& dy_RO, const Operand& x_RI, const GroupedGemm& gemm) override {
    if (is_frozen()) return count_grads(weight());
    if (!scaling_.options().weight_gradients)
      return gemm.accumulate_weight_grad(dy_RO.columns, x_RI.columns, weight());
    accumulate_block(weight(), [&](const at::Tensor& sum_EOI, bool add) {
      fp8_grouped_weight_gradient_(sum_EOI, matrix(dy_RO), matrix(x_RI), gemm.fp8_groups(), add);
    });
  }

 private:
  using Role = Fp8Scaling::Role;

  static Fp8Matrix matrix(const Operand& x) { return {x.rows, x.columns, x.scale_inv}; }
  at::ScalarType dtype() const { return weight().front()->tensor.scalar_type(); }

  Operand cast(const at::Tensor& x, Role role, const GroupedGemm& gemm, Fp8Scaling::Outputs outputs) {
    const bool keeps_dense = outputs.columns && !scaling_.options().weight_gradients;
    if (keeps_dense && !outputs.rows) return {.columns = x};
    if (keeps_dense) outputs.columns = false;
    outputs.groups = &gemm.fp8_groups();
    const Fp8Matrix matrix = scaling_.cast(x, {layer_, role}, outputs);
    return {matrix.rows, keeps_dense ? x : matrix.columns, matrix.scale_inv};
  }

  // [E O, I] and its transpose.
  const Fp8Matrix& fp8_weight() {
    if (cast_in_step_ == scaling_.step()) return cast_weight_;
    cast_weight_ = {};  // frees its memory for the next cast
    cast_weight_ = scaling_.cast(as_block(weight()).flatten(0, 1), {layer_, Role::weight}, {});
    cast_in_step_ = scaling_.step();
    return cast_weight_;
  }

  Fp8Scaling& scaling_;
  int64_t layer_ = 0;
  Fp8Matrix cast_weight_;
  int64_t cast_in_step_ = -1;
};

}  // namespace

std::unique_ptr<ExpertMatmul> make_expert_matmul(ExpertParameters weight, const std::string& name,
                                                 Fp8Scaling* fp8) {
  if (fp8) return std::make_unique<Fp8ExpertMatmul>(std::move(weight), name, *fp8);
  return std::make_unique<DenseExpertMatmul>(std::move(weight));
}

}  // namespace teratron
