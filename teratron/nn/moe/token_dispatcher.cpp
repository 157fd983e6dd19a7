#include "teratron/nn/moe/token_dispatcher.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

at::Tensor gather_bools(const at::Tensor& x, const Group& group) {
  if (!x.defined()) return x;
  return all_gather_values(x.to(at::kByte), 0, group).to(at::kBool);
}

void run_beside(const LocalWork& local) {
  if (local.beside) local.beside();
}

// Permutes rows [ranks, experts, rows] to [experts, ranks, rows], which have one expert each.
Permutation by_expert(int64_t ranks, int64_t experts, int64_t rows, const at::TensorOptions& options) {
  const at::Tensor all = at::arange(ranks * experts * rows, options);
  return {.slot_of_row = all.view({ranks, experts, rows}).transpose(0, 1).flatten(),
          .row_of_slot = all.view({experts, ranks, rows}).transpose(0, 1).flatten().unsqueeze(1),
          .kept_TK = {},
          .ends_E = at::arange(1, experts + 1, options.dtype(at::kInt)) * (ranks * rows)};
}

// i64 [T, K, ranks]: 1 where the choice is kept and its expert on the rank, of `experts_per_rank`.
at::Tensor choices_by_rank(const at::Tensor& experts_TK, const at::Tensor& kept_TK, int64_t experts_per_rank,
                           int64_t ranks) {
  const at::Tensor rank_TK1 = at::floor_divide(experts_TK, experts_per_rank).unsqueeze(2);
  at::Tensor choices_TKR = rank_TK1 == at::arange(ranks, experts_TK.options());
  if (kept_TK.defined()) choices_TKR.logical_and_(kept_TK.unsqueeze(2));
  return choices_TKR.to(at::kLong);
}

}  // namespace

// Parts of tensor-parallel ranks, or of all if tokens are not dispatched, are rounded after they are added.
at::ScalarType TokenDispatcher::sum_dtype(const at::Tensor& x) const {
  const Group& group = options_.kind == TokenDispatch::none ? parallel_.both : parallel_.tensor;
  return group.size > 1 ? main_grad_dtype(x.scalar_type()) : x.scalar_type();
}

at::Tensor TokenDispatcher::forward(const at::Tensor& x_TH, const Routing& routing, const KeptChoices& kept,
                                    const LocalWork& local) const {
  const auto& [kept_TK, capacity] = kept;
  if (options_.kind == TokenDispatch::none) {
    const Group& both = parallel_.both;
    const Routing same{routing.experts_TK, copy_to(routing.probs_TK, both)};
    return reduce_from(local_forward({copy_to(x_TH, both), same, kept_TK}, local), both)
        .to(x_TH.scalar_type());
  }
  const auto dispatch = [&](const Tokens& tokens) {
    return parallel_.experts.size == 1 ? local_forward(tokens, local) : dispatched_forward(tokens, local);
  };
  const Group& tensor = parallel_.tensor;
  if (tensor.size == 1) return dispatch({x_TH, routing, kept_TK, capacity});
  if (options_.replicated) {
    const Routing same{routing.experts_TK, copy_to(routing.probs_TK, tensor)};
    return reduce_from(dispatch({copy_to(x_TH, tensor), same, kept_TK, capacity}), tensor)
        .to(x_TH.scalar_type());
  }
  const Routing all{all_gather_values(routing.experts_TK, 0, tensor),
                    all_gather(routing.probs_TK, 0, tensor)};
  const Tokens tokens{all_gather(x_TH, 0, tensor), all, gather_bools(kept_TK, tensor), capacity};
  return reduce_scatter(dispatch(tokens), 0, tensor).to(x_TH.scalar_type());
}

// Permutation of the tokens of all expert-parallel ranks.
Permutation TokenDispatcher::padded_permutation(const Tokens& tokens) const {
  const at::Tensor& experts_TK = tokens.routing.experts_TK;
  const int64_t rows = std::min(tokens.capacity * options_.microbatches, experts_TK.size(0));
  return make_padded_permutation(experts_TK, tokens.kept_TK, own_experts(), rows);
}

at::Tensor TokenDispatcher::local_forward(const Tokens& tokens, const LocalWork& local) const {
  const auto& [x_TH, routing, kept_TK, capacity] = tokens;
  Permutation permutation = capacity > 0 ? padded_permutation(tokens)
                                         : make_permutation(routing.experts_TK, kept_TK, own_experts());
  if (capacity == 0 && !kept_TK.defined() && own_experts().count == options_.experts)
    permutation = permutation.first_rows(routing.experts_TK.numel());
  const at::Tensor y_RH =
      local.experts(permute(x_TH, permutation), permute_slots(routing.probs_TK, permutation), permutation);
  const at::Tensor y_TH = unpermute(y_RH, permutation, sum_dtype(y_RH));
  run_beside(local);
  return y_TH;
}

at::Tensor TokenDispatcher::dispatched_forward(const Tokens& tokens, const LocalWork& local) const {
  Arrival a = options_.kind == TokenDispatch::all_gather ? gather_tokens(tokens, local)
              : tokens.capacity > 0                      ? exchange_padded(tokens, local)
                                                         : exchange_tokens(tokens, local);
  const at::Tensor y_RH = local.experts(permute_arriving(a.x_TH, a.arriving, a.route, a.permutation),
                                        permute_slots(a.probs_UK, a.permutation), a.permutation);
  return unpermute_returning(y_RH, a.route, a.permutation, sum_dtype(y_RH));
}

TokenDispatcher::Arrival TokenDispatcher::gather_tokens(const Tokens& tokens, const LocalWork& local) const {
  const Group& group = parallel_.experts;
  const Tokens all{
      {},
      {all_gather_values(tokens.routing.experts_TK, 0, group), all_gather(tokens.routing.probs_TK, 0, group)},
      gather_bools(tokens.kept_TK, group),
      tokens.capacity};
  const at::Tensor& experts_TK = all.routing.experts_TK;
  std::optional<HostCopy> rows;
  if (all.capacity == 0) rows.emplace(choices_of(experts_TK, all.kept_TK, own_experts()).sum());
  const ExpertRoutePtr route = c10::make_intrusive<GatherRoute>(group);
  AsyncTensor arriving = route->start(tokens.x_TH.detach());
  run_beside(local);
  Permutation permutation =
      all.capacity > 0 ? padded_permutation(all) : make_permutation(experts_TK, all.kept_TK, own_experts());
  if (rows) permutation = permutation.first_rows(rows->wait().item<int64_t>());
  return {route, tokens.x_TH, std::move(arriving), all.routing.probs_TK, permutation};
}

TokenDispatcher::Arrival TokenDispatcher::exchange_tokens(const Tokens& tokens,
                                                          const LocalWork& local) const {
  const Group& group = parallel_.experts;
  const auto& [x_TH, routing, kept_TK, capacity] = tokens;
  const at::Tensor choices_TKR =
      choices_by_rank(routing.experts_TK, kept_TK, own_experts().count, group.size);
  const at::Tensor goes_TR = choices_TKR.any(1);
  AllToAll all_to_all(at::stack({goes_TR.sum(0), choices_TKR.flatten(0, 1).sum(0)}, 1),
                      {group, x_TH.size(0)});
  const at::Tensor rank_TR = at::arange(group.size, routing.experts_TK.options()).expand_as(goes_TR);
  const Permutation slots = make_permutation(rank_TR, goes_TR, {0, group.size});
  const Permutation sent = slots.first_rows(all_to_all.sent_rows());
  const int64_t rows = all_to_all.received_sum(1);
  const ExpertRoutePtr route = c10::make_intrusive<AllToAllRoute>(std::move(all_to_all), sent);
  const at::Tensor chosen_TK =
      kept_TK.defined() ? routing.experts_TK.masked_fill(kept_TK.logical_not(), -1) : routing.experts_TK;
  const at::Tensor experts_UK = bring(chosen_TK, route), probs_UK = bring(routing.probs_TK, route);
  AsyncTensor arriving = route->start(x_TH.detach());
  run_beside(local);
  return {route, x_TH, std::move(arriving), probs_UK,
          make_permutation(experts_UK, at::Tensor(), own_experts()).first_rows(rows)};
}

// As many rows of each expert from every rank.
TokenDispatcher::Arrival TokenDispatcher::exchange_padded(const Tokens& tokens,
                                                          const LocalWork& local) const {
  const Group& group = parallel_.experts;
  const auto& [x_TH, routing, kept_TK, capacity] = tokens;
  const ExpertRange own = own_experts();
  const int64_t rows = std::min(capacity * options_.tensor_microbatches, routing.experts_TK.size(0));
  const Permutation sent = make_padded_permutation(routing.experts_TK, kept_TK, {0, options_.experts}, rows);
  const auto route_with = [&](std::optional<Permutation> permutation) -> ExpertRoutePtr {
    return c10::make_intrusive<AllToAllRoute>(AllToAll({group, own.count * rows}), std::move(permutation));
  };
  const ExpertRoutePtr route = route_with(sent), route_of_rows = route_with(std::nullopt);
  const at::Tensor probs_U1 = bring(permute_slots(routing.probs_TK, sent).unsqueeze(1), route_of_rows);
  AsyncTensor arriving = route->start(x_TH.detach());
  run_beside(local);
  return {route, x_TH, std::move(arriving), probs_U1,
          by_expert(group.size, own.count, rows, routing.experts_TK.options())};
}

}  // namespace teratron
