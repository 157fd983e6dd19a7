// Experts that see every token (Megatron-Core's SharedExpertMLP): an MLP beside the routed experts,
// optionally multiplied by a gate, sigmoid(x . g) (Qwen2-MoE). It is tensor-parallel as any other MLP.
#pragma once

#include "teratron/nn/mlp.h"

namespace teratron {

struct SharedExpertsOptions {
  MlpOptions mlp;  // ffn_hidden: of all shared experts together
  bool gate = false;
};

class SharedExperts {
 public:
  /// `scope`: "...mlp.shared_experts".
  SharedExperts(const Scope& scope, const SharedExpertsOptions& options, const TensorParallel& parallel);
  at::Tensor forward(const at::Tensor& x_SBH);

 private:
  Mlp mlp_;
  Parameter* gate_ = nullptr;  // [1, H]
};

}  // namespace teratron
