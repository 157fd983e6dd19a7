// The three GEMMs of a linear layer of experts, over rows that are sorted by expert (grouped_gemm.h): in the
// model's dtype, or in FP8 (fp8_scaling.h) as those of any linear layer (nn/matmul.h).
//
// In FP8 the rows of all experts have one scale, and so have the weights of all experts: with delayed
// scaling it depends, from the second step on, on neither the layout nor an expert's load. All weights are
// cast once per step.
#pragma once

#include <memory>
#include <string>

#include "teratron/nn/moe/grouped_gemm.h"

namespace teratron {

class ExpertMatmul {
 public:
  /// x [R, in] or dy [R, out] as the GEMMs read it.
  struct Operand {
    at::Tensor rows;       // for y and dx
    at::Tensor columns;    // for dW
    at::Tensor scale_inv;  // undefined: 1
  };

  explicit ExpertMatmul(ExpertParameters weight) : weight_(std::move(weight)) {}
  ExpertMatmul(const ExpertMatmul&) = delete;
  ExpertMatmul& operator=(const ExpertMatmul&) = delete;
  virtual ~ExpertMatmul() = default;

  const ExpertParameters& weight() const { return weight_; }
  bool is_frozen() const { return !weight_.front()->options.trainable; }

  virtual Operand input(const at::Tensor& x_RI, const GroupedGemm& gemm,
                        const Fp8Scaling::Outputs& outputs) = 0;
  virtual Operand output_grad(const at::Tensor& dy_RO, const GroupedGemm& gemm) = 0;
  virtual at::Tensor forward(const Operand& x_RI, const GroupedGemm& gemm) = 0;
  virtual at::Tensor input_grad(const Operand& dy_RO, const GroupedGemm& gemm) = 0;
  /// Into main_grad; experts without rows have a gradient of zero. Frozen weights have none.
  virtual void accumulate_weight_grad(const Operand& dy_RO, const Operand& x_RI, const GroupedGemm& gemm) = 0;

 private:
  ExpertParameters weight_;
};

/// In FP8 with `fp8` (may be null), which must outlive them and requires in and out to be multiples of 16.
/// Scales are named after `name`, as if the weights were one tensor.
std::unique_ptr<ExpertMatmul> make_expert_matmul(ExpertParameters weight, const std::string& name,
                                                 Fp8Scaling* fp8);

}  // namespace teratron
