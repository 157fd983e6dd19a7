#include "teratron/nn/moe/load_balancing.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace teratron {

namespace {

struct AttachLoss : torch::autograd::Function<AttachLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& loss, const at::Tensor& scale) {
    context->saved_data["scale"] = scale.to(loss.scalar_type());
    return x.clone();  // small, and the output of a view could not be written in place
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], context->saved_data["scale"].toTensor(), at::Tensor()};
  }
};

double balance_factor(int64_t experts, const BalanceOptions& options) {
  const auto tokens = static_cast<double>(options.tokens);
  return static_cast<double>(experts) / (static_cast<double>(options.topk) * tokens * tokens);
}

}  // namespace

at::Tensor load_balancing_loss(const at::Tensor& probs_TE, const at::Tensor& counts_E,
                               const BalanceOptions& options) {
  return (probs_TE.sum(0) * counts_E).sum() * balance_factor(probs_TE.size(1), options);
}

at::Tensor sequence_balancing_loss(const at::Tensor& probs_SBE, const at::Tensor& counts_BE,
                                   const BalanceOptions& options) {
  const auto sequences = static_cast<double>(probs_SBE.size(1));
  return (probs_SBE.sum(0) * counts_BE).sum() * (balance_factor(probs_SBE.size(2), options) / sequences);
}

at::Tensor router_z_loss(const at::Tensor& logits_TE, int64_t tokens) {
  const at::Tensor wide_TE = logits_TE.scalar_type() == at::kDouble ? logits_TE : logits_TE.to(at::kFloat);
  return wide_TE.logsumexp(-1).square().sum() / static_cast<double>(tokens);
}

void update_expert_bias_(at::Tensor bias_E, const at::Tensor& counts_E, double rate) {
  const at::Tensor wide_E = counts_E.to(at::kDouble);
  bias_E.add_((wide_E.mean() - wide_E).sign().to(bias_E.scalar_type()), rate);
}

at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss, const at::Tensor& scale) {
  return AttachLoss::apply(x, loss, scale);
}

}  // namespace teratron
