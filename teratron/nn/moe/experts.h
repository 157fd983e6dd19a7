// The experts of a layer (Megatron-Core's GroupedMLP): an MLP each, over rows sorted by expert.
//
//   y_r = fc2_e(activation(fc1_e(x_r)) p_r) (+ b_e p_r)      r: row of expert e, p: its probability
//
// Each expert is a few tensors, "experts.17.linear_fc1.weight", on the ranks that hold it: those of one
// expert-parallel coordinate (expert e of E is on rank e / (E / EP)). Its hidden dimension is sharded
// over the expert tensor-parallel group; then y is this rank's part of a sum, to which the first rank adds b.
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/kernels/pointwise/activation_kind.h"
#include "teratron/kernels/pointwise/glu_input.h"
#include "teratron/nn/moe/expert_matmul.h"
#include "teratron/nn/moe/experts_lora.h"
#include "teratron/nn/moe/permutation.h"

namespace teratron {

/// The groups of ranks that experts are divided over.
struct ExpertParallel {
  Group experts;    // Axis::ep
  Group tensor;     // Axis::etp
  Group both = {};  // for TokenDispatch::none

  /// The experts of this rank.
  ExpertRange local(int64_t experts_in_all) const {
    const int64_t count = experts_in_all / experts.size;
    return {experts.rank * count, count};
  }
};

struct ExpertsOptions {
  int64_t experts = 0;  // of all ranks
  int64_t hidden = 0;
  int64_t ffn_hidden = 0;
  Activation activation = Activation::swiglu;
  GluVariant glu = {};  // of SwiGLU
  bool bias = false;
  Init fc1_init;
  Init fc2_init;
};

class Experts {
 public:
  /// `scope`: that of the layer ("...mlp").
  Experts(const Scope& scope, const ExpertsOptions& options, const ExpertParallel& parallel);
  /// x [R, H], p [R] with the ends of `permutation` -> [R, H]. Differentiable.
  at::Tensor forward(const at::Tensor& x_RH, const at::Tensor& probs_R, const Permutation& permutation);
  /// All of this rank's.
  const std::vector<Parameter*>& parameters() const { return all_; }

  // For the autograd function.
  struct Layer {
    std::unique_ptr<ExpertMatmul> matmul;
    ExpertParameters bias;              // empty: none
    std::unique_ptr<ExpertsLora> lora;  // null: none
  };
  const Layer& fc1() const { return fc1_; }
  const Layer& fc2() const { return fc2_; }
  Activation activation() const { return activation_; }
  const GluVariant& glu() const { return glu_; }
  bool adds_output_bias() const { return !fc2_.bias.empty() && first_; }

 private:
  Activation activation_;
  GluVariant glu_;
  bool first_;  // of the expert tensor-parallel group
  Layer fc1_, fc2_;
  std::vector<Parameter*> all_;
};

}  // namespace teratron
