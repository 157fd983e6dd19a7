// A mixture of experts in place of the MLP (Shazeer et al. 2017; Megatron-Core's MoELayer):
//
//   y_t = sum over the experts e that the router chose for token t of  p_te expert_e(x_t)  (+ shared(x_t))
//
// Choices, drops, losses and, up to rounding, outputs and gradients are those of one rank on every layout.
#pragma once

#include <memory>
#include <optional>

#include "teratron/nn/moe/router.h"
#include "teratron/nn/moe/shared_experts.h"
#include "teratron/nn/moe/token_dispatcher.h"

namespace teratron {

struct MoeOptions {
  RouterOptions router;
  ExpertsOptions experts;
  std::optional<SharedExpertsOptions> shared = {};
  TokenDispatch dispatch = TokenDispatch::all_gather;
  bool recompute = false;  // in backward
};

class MoeLayer : public FeedForward {
 public:
  /// `scope`: "...mlp", which failures of these groups name. Experts are divided over the mesh's
  /// expert-parallel and expert tensor-parallel groups, of which under tensor parallelism without sequence
  /// parallelism the latter is the layer's, unless tokens are not dispatched.
  MoeLayer(const Scope& scope, const MoeOptions& options, const TensorParallel& parallel, const Mesh& mesh);
  at::Tensor forward(const at::Tensor& x_SBH, const LayerContext& context) override;

 private:
  at::Tensor run(const at::Tensor& x_SBH, const LayerContext& context);
  void notify_of_experts(const at::Tensor& y_RH, const Permutation& permutation,
                         const LayerContext& context) const;

  std::string name_;
  bool recompute_;
  ExpertParallel parallel_;
  int64_t first_expert_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<SharedExperts> shared_;  // null: none
  TokenDispatcher dispatcher_;
};

}  // namespace teratron
