// Losses and updates that spread tokens evenly over experts.
//
//   auxiliary loss (Switch Transformer, Fedus et al. 2021; as in Megatron-LM, 1 at perfect balance)
//     L = E / (k T^2) sum_e n_e sum_t p_te
//   with n_e tokens whose top-k of p has expert e, of T in total, and p the normalized scores (routing.h).
//   Gradients flow through p only. Where the tokens are spread over ranks, n_e and T are those of all, and
//   the losses of the ranks' own p add up to L: every layout has the same value and gradients.
//   z-loss (ST-MoE, Zoph et al. 2022)   L = mean_t logsumexp(l_t)^2
//   expert bias (Wang et al. 2024)      b_e += rate sign(mean of n - n_e) after each step
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace teratron {

struct BalanceOptions {
  int64_t topk = 1;
  int64_t tokens = 0;  // T
};

/// Loss of one set of tokens: p [t, E] of this rank, n [E] of all ranks.
at::Tensor load_balancing_loss(const at::Tensor& probs_TE, const at::Tensor& counts_E,
                               const BalanceOptions& options);
/// Mean of the losses of B sequences of T tokens: p [s, B, E] of this rank, n [B, E] of all ranks.
at::Tensor sequence_balancing_loss(const at::Tensor& probs_SBE, const at::Tensor& counts_BE,
                                   const BalanceOptions& options);
/// Sum over this rank's tokens, divided by `tokens`, those of all ranks.
at::Tensor router_z_loss(const at::Tensor& logits_TE, int64_t tokens);

/// In place; counts [E] of a whole step.
void update_expert_bias_(at::Tensor bias_E, const at::Tensor& counts_E, double rate);

/// y = x; backward adds `scale`, f64 [], as the gradient of `loss`, which is not in the graph of any other
/// loss.
at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss, const at::Tensor& scale);

}  // namespace teratron
