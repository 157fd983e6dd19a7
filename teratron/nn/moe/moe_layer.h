// A mixture of experts in place of the MLP (Shazeer et al. 2017; Megatron-Core's MoELayer):
//
//   y_t = sum over the experts e that the router chose for token t of  p_te expert_e(x_t)  (+ shared(x_t))
//
// or, with inputs_weighted, the sum of expert_e(p_te x_t) (Llama 4).
//
// With latent experts (LatentMoE) W2 sum p_te expert_e(W1 x_t) takes the place of the sum: experts and what
// is sent between ranks are narrower than the tokens.
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
  int64_t latent = 0;  // width of the experts' inputs and outputs; 0: that of the tokens
  Init latent_in_init, latent_out_init;
  bool recompute = false;  // in backward
  bool inputs_weighted = false;
};

class MoeLayer : public FeedForward {
 public:
  /// `scope`: "...mlp", which failures of these groups name. Experts are divided over the mesh's
  /// expert-parallel and expert tensor-parallel groups, of which under tensor parallelism without sequence
  /// parallelism the latter is the layer's, unless tokens are not dispatched.
  MoeLayer(const Scope& scope, const MoeOptions& options, const TensorParallel& parallel, const Mesh& mesh);
  at::Tensor forward(const at::Tensor& x_SBH, const LayerContext& context) override;

 private:
  void create_latent(const Scope& scope, const MoeOptions& options, const TensorParallel& parallel);
  at::Tensor run(const at::Tensor& x_SBH, const LayerContext& context);
  void notify_of_experts(const at::Tensor& y_RH, const Permutation& permutation,
                         const LayerContext& context) const;

  std::string name_;
  bool recompute_;
  bool inputs_weighted_;
  ExpertParallel parallel_;
  int64_t first_expert_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<SharedExperts> shared_;  // null: none
  Parameter* latent_in_ = nullptr;         // W1 [latent, H], null: none
  Parameter* latent_out_ = nullptr;        // W2 [H, latent]
  TokenDispatcher dispatcher_;
};

}  // namespace teratron
