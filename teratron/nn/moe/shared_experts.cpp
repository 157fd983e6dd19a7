#include "teratron/nn/moe/shared_experts.h"

namespace teratron {

SharedExperts::SharedExperts(const Scope& scope, const SharedExpertsOptions& options,
                             const TensorParallel& parallel)
    : mlp_(scope, options.mlp, parallel) {
  if (!options.gate) return;
  gate_ = &scope.parameter("gate_weight", {.shard = Shard::replicated({1, options.mlp.hidden}),
                                           .init = options.mlp.fc1_init,
                                           .grad_sum = parallel.grad_sum()});
}

at::Tensor SharedExperts::forward(const at::Tensor& x_SBH) {
  const at::Tensor y_SBH = mlp_.forward(x_SBH);
  if (!gate_) return y_SBH;
  return y_SBH * at::matmul(x_SBH, autograd_tensor(*gate_).t()).sigmoid();
}

}  // namespace teratron
