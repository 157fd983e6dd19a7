#include "teratron/nn/moe/routing.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr double sum_floor = 1e-20;

at::Tensor as_wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

// Indices of the k largest of each row, largest first; ties: the lowest index.
at::Tensor top_indices(const at::Tensor& scores, int64_t k) {
  const at::Tensor order = std::get<1>(at::sort(scores.detach(), /*stable=*/true, -1, /*descending=*/true));
  return order.narrow(-1, 0, k);
}

at::Tensor unnormalized(const at::Tensor& wide_TE, RouterScore score) {
  return score == RouterScore::sigmoid ? wide_TE.sigmoid() : at::softplus(wide_TE).sqrt();
}

// -inf for experts outside of the best groups.
at::Tensor within_best_groups(const at::Tensor& scores_TE, const RoutingOptions& options) {
  if (options.groups == 0) return scores_TE;
  const at::Tensor scores_TGE = scores_TE.detach().unflatten(1, {options.groups, -1});
  const int64_t summed =
      options.group_score_topk > 0 ? options.group_score_topk : options.topk / options.group_topk;
  const at::Tensor best_TGK = scores_TGE.gather(2, top_indices(scores_TGE, summed));
  const at::Tensor groups_TG = top_indices(best_TGK.sum(2), options.group_topk);
  const at::Tensor open_TG = at::zeros_like(scores_TGE.select(2, 0), at::kBool).scatter_(1, groups_TG, true);
  const at::Tensor closed_TGE = open_TG.logical_not().unsqueeze(2).expand_as(scores_TGE);
  return scores_TGE.masked_fill(closed_TGE, -INFINITY).flatten(1);
}

}  // namespace

at::Tensor top_experts(const at::Tensor& scores_TE, int64_t k) {
  return std::get<0>(at::sort(top_indices(scores_TE, k), -1));
}

Routing route(const at::Tensor& logits_TE, const at::Tensor& expert_bias_E, const RoutingOptions& options) {
  const at::Tensor wide_TE = as_wide(logits_TE);
  const bool softmax = options.score == RouterScore::softmax;
  const at::Tensor scores_TE = !softmax              ? unnormalized(wide_TE, options.score)
                               : options.pre_softmax ? wide_TE.softmax(-1)
                                                     : wide_TE;
  const at::Tensor selected_by = expert_bias_E.defined() ? scores_TE.detach() + expert_bias_E : scores_TE;
  const at::Tensor experts_TK = top_experts(within_best_groups(selected_by, options), options.topk);
  at::Tensor probs_TK = scores_TE.gather(1, experts_TK);
  if (softmax && !options.pre_softmax) probs_TK = probs_TK.softmax(-1);
  if (softmax && options.pre_softmax && options.least_sum)
    probs_TK = probs_TK / probs_TK.sum(-1, /*keepdim=*/true).clamp_min(*options.least_sum);
  if (!softmax && options.normalize && (options.topk > 1 || options.normalize_one))
    probs_TK = probs_TK / (probs_TK.sum(-1, /*keepdim=*/true) + sum_floor);
  if (options.scaling != 1.0) probs_TK = probs_TK * options.scaling;
  return {experts_TK, probs_TK.to(logits_TE.scalar_type())};
}

Routing route_to(const at::Tensor& logits_TE, const at::Tensor& experts_TK) {
  const at::Tensor wide_TE = as_wide(logits_TE);
  const at::Tensor scores_TE = experts_TK.size(1) == 1 ? wide_TE.sigmoid() : wide_TE.softmax(-1);
  return {experts_TK, scores_TE.gather(1, experts_TK).to(logits_TE.scalar_type())};
}

at::Tensor normalized_scores(const at::Tensor& logits_TE, RouterScore score) {
  const at::Tensor wide_TE = as_wide(logits_TE);
  if (score == RouterScore::softmax) return wide_TE.softmax(-1);
  const at::Tensor scores_TE = unnormalized(wide_TE, score);
  return scores_TE / (scores_TE.sum(-1, /*keepdim=*/true) + sum_floor);
}

at::Tensor expert_counts(const at::Tensor& experts_TK, int64_t experts, const at::Tensor& kept_TK) {
  const at::Tensor ones = kept_TK.defined() ? kept_TK.to(at::kLong) : at::ones_like(experts_TK);
  return at::zeros({experts}, experts_TK.options()).scatter_add_(0, experts_TK.flatten(), ones.flatten());
}

at::Tensor sinkhorn(const at::Tensor& logits_TE) {
  constexpr double tolerance = 1e-4, floor = 1e-8;
  const at::NoGradGuard no_grad;
  const at::Tensor cost_TE = as_wide(logits_TE).exp();
  const auto tokens = static_cast<double>(cost_TE.size(0)), experts = static_cast<double>(cost_TE.size(1));
  at::Tensor rows_T, columns_E = at::ones({cost_TE.size(1)}, cost_TE.options());
  // NaN ends the loop, too.
  for (double change = INFINITY; change > tolerance;) {
    rows_T = (1.0 / tokens) / ((columns_E * cost_TE).sum(1) + floor);
    const at::Tensor next_E = (1.0 / experts) / ((rows_T.unsqueeze(1) * cost_TE).sum(0) + floor);
    change = (columns_E - next_E).abs().mean().item<double>();
    columns_E = next_E;
  }
  return columns_E * cost_TE * rows_T.unsqueeze(1);
}

int64_t expert_capacity(int64_t tokens, int64_t topk, int64_t experts, double factor) {
  const double mean = static_cast<double>(tokens * topk) / static_cast<double>(experts);
  return static_cast<int64_t>(std::ceil(mean * factor));
}

at::Tensor kept_within_capacity(const Routing& routing, const Capacity& capacity) {
  const at::Tensor experts = routing.experts_TK.flatten();
  // Choices by expert, each expert's best first; stable sorts leave ties in the order of tokens.
  at::Tensor order = at::arange(experts.numel(), experts.options());
  if (capacity.policy == DropPolicy::probs) {
    order =
        std::get<1>(at::sort(routing.probs_TK.detach().flatten(), /*stable=*/true, 0, /*descending=*/true));
  }
  const at::Tensor by_expert =
      std::get<1>(at::sort(experts.index_select(0, order), /*stable=*/true, 0, /*descending=*/false));
  order = order.index_select(0, by_expert);
  const at::Tensor counts_E = expert_counts(routing.experts_TK, capacity.experts);
  const at::Tensor starts_E = counts_E.cumsum(0) - counts_E;
  const at::Tensor place = at::arange(experts.numel(), experts.options()) -
                           starts_E.index_select(0, experts.index_select(0, order));
  const at::Tensor kept = at::empty_like(experts, at::kBool).scatter_(0, order, place < capacity.per_expert);
  return kept.view_as(routing.experts_TK);
}

}  // namespace teratron
