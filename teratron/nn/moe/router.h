// The router of an MoE layer (Megatron-Core's TopKRouter): which experts see a token, and with which
// probabilities.
//
//   logits = x W^T (+ b), x after jitter      losses of the logits: load_balancing.h
//
// Tokens of one micro-batch are routed together wherever they are. Capacity, sinkhorn and the counts in
// losses are those of all sequence shards and context-parallel ranks, so that the result is the same on every
// layout. Capacity is therefore that of a micro-batch, which Megatron-LM divides among the ranks.
//
// Losses are added to the gradient, not to the loss that is reported. The global loss counts the tokens of
// all replicas and micro-batches since the step began; its scale, unlike Megatron-LM's, does not depend on
// the number of replicas.
#pragma once

#include <optional>

#include "teratron/nn/layer.h"
#include "teratron/nn/moe/routing.h"

namespace teratron {

struct RouterOptions {
  int64_t experts = 0;
  int64_t hidden = 0;
  RoutingOptions routing;
  bool sinkhorn = false;
  bool bias = false;  // of the logits
  Init init;
  std::optional<at::ScalarType> dtype = {};  // of the logits; null: that of x
  double jitter = 0.0;
  bool force_balance = false;  // random logits
  bool expert_bias = false;
  double expert_bias_rate = 1e-3;
  // Coefficients of the losses; 0: none.
  double aux_loss = 0.0;
  double seq_aux_loss = 0.0;
  double global_aux_loss = 0.0;
  double z_loss = 0.0;
  double capacity_factor = 0.0;  // 0: nothing is dropped
  DropPolicy drop_policy = DropPolicy::probs;
  bool pad_to_capacity = false;
  uint64_t random_site = 0;  // numbered through the whole model, as those of dropout
  int64_t first_sum = 0;     // of the layer, in AuxiliaryLosses::sums
};

class Router {
 public:
  /// `scope`: "...mlp.router".
  Router(const Scope& scope, const RouterOptions& options, const TensorParallel& parallel, const Mesh& mesh);

  struct Output {
    Routing routing;
    KeptChoices kept;
  };
  /// Routes x [S, B, H], S local under sequence parallelism.
  Output forward(const at::Tensor& x_SBH, const LayerContext& context);
  const std::vector<Parameter*>& parameters() const { return parameters_; }

 private:
  struct Losses;
  at::Tensor logits(const at::Tensor& x_SBH, const LayerContext& context);
  at::Tensor random_rows(const at::Tensor& x_SBH, const LayerContext& context, int64_t columns) const;
  Routing choose(const at::Tensor& logits_TE, const LayerContext& context) const;
  KeptChoices kept(const Routing& routing, const LayerContext& context) const;
  Losses losses(const at::Tensor& logits_TE, int64_t batch);
  void record(const Losses& losses, const Output& output, const LayerContext& context);
  at::Tensor own_shard(const at::Tensor& all) const;

  RouterOptions options_;
  std::string name_;
  TensorParallel parallel_;
  Group sequence_shards_;  // one rank without sequence parallelism
  Group shards_;           // these and context-parallel ranks: the tokens of a micro-batch
  Group data_parallel_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
  std::vector<Parameter*> parameters_;
  at::Tensor expert_bias_E_;    // fp32; undefined: none
  at::Tensor step_counts_E_;    // tokens that experts processed in this step
  at::Tensor global_counts_E_;  // choices of all replicas in this step, and the micro-batches counted
  at::Tensor global_batches_;
};

}  // namespace teratron
