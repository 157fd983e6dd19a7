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

}  // namespace

// Sums are rounded at the end, after those of other ranks are added.
at::ScalarType TokenDispatcher::sum_dtype(const at::Tensor& x) const {
  const bool adds_ranks = options_.kind == TokenDispatch::none
                              ? parallel_.both.size > 1
                              : parallel_.tensor.size > 1 || (parallel_.experts.size > 1 &&
                                                              options_.kind != TokenDispatch::all_to_all);
  return adds_ranks ? main_grad_dtype(x.scalar_type()) : x.scalar_type();
}

at::Tensor TokenDispatcher::forward(const at::Tensor& x_TH, const Routing& routing, const KeptChoices& kept,
                                    const LocalExperts& experts) const {
  const auto& [kept_TK, capacity] = kept;
  if (options_.kind == TokenDispatch::none) {
    const Group& both = parallel_.both;
    const Routing same{routing.experts_TK, copy_to(routing.probs_TK, both)};
    return reduce_from(local_forward({copy_to(x_TH, both), same, kept_TK}, experts), both)
        .to(x_TH.scalar_type());
  }
  const auto dispatch = [&](const Tokens& tokens) {
    if (parallel_.experts.size == 1) return local_forward(tokens, experts);
    return options_.kind == TokenDispatch::all_to_all ? all_to_all_forward(tokens, experts)
                                                      : all_gather_forward(tokens, experts);
  };
  const Group& tensor = parallel_.tensor;
  if (tensor.size == 1) return dispatch({x_TH, routing, kept_TK, capacity}).to(x_TH.scalar_type());
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

// Of the tokens of all expert-parallel ranks.
Permutation TokenDispatcher::local_permutation(const Tokens& tokens) const {
  const at::Tensor& experts_TK = tokens.routing.experts_TK;
  const ExpertRange local = parallel_.local(options_.experts);
  if (tokens.capacity > 0) {
    const int64_t rows = std::min(tokens.capacity * options_.microbatches, experts_TK.size(0));
    return make_padded_permutation(experts_TK, tokens.kept_TK, local, rows);
  }
  std::optional<int64_t> rows;
  const bool dispatched = parallel_.experts.size > 1 && options_.kind != TokenDispatch::none;
  if (dispatched) {
    rows = expert_counts(experts_TK, options_.experts, tokens.kept_TK)
               .narrow(0, local.first, local.count)
               .sum()
               .item<int64_t>();
  } else if (!tokens.kept_TK.defined() && parallel_.experts.size == 1) {
    rows = experts_TK.numel();
  }
  return make_permutation(experts_TK, tokens.kept_TK, local, rows);
}

at::Tensor TokenDispatcher::local_forward(const Tokens& tokens, const LocalExperts& experts) const {
  const Permutation permutation = local_permutation(tokens);
  const at::Tensor y_RH = experts(permute(tokens.x_TH, permutation),
                                  permute_slots(tokens.routing.probs_TK, permutation), permutation);
  return unpermute(y_RH, permutation, sum_dtype(y_RH));
}

at::Tensor TokenDispatcher::all_gather_forward(const Tokens& tokens, const LocalExperts& experts) const {
  const Group& group = parallel_.experts;
  const Routing routing{all_gather_values(tokens.routing.experts_TK, 0, group),
                        all_gather(tokens.routing.probs_TK, 0, group)};
  const Tokens all{all_gather(tokens.x_TH, 0, group), routing, gather_bools(tokens.kept_TK, group),
                   tokens.capacity};
  return reduce_scatter(local_forward(all, experts), 0, group);
}

// Rows sorted by expert are sorted by rank, too.
TokenDispatcher::Route TokenDispatcher::route(const Tokens& tokens) const {
  const at::Tensor& experts_TK = tokens.routing.experts_TK;
  const ExpertRange all{0, options_.experts}, local = parallel_.local(options_.experts);
  if (tokens.capacity > 0) {
    const int64_t rows = std::min(tokens.capacity * options_.tensor_microbatches, experts_TK.size(0));
    const at::Tensor experts_E = at::arange(local.first, local.first + local.count, experts_TK.options());
    const at::Tensor received = experts_E.repeat_interleave(rows).repeat({parallel_.experts.size});
    return {Exchange(local.count * rows, parallel_.experts),
            make_padded_permutation(experts_TK, tokens.kept_TK, all, rows), received.unsqueeze(1)};
  }
  const at::Tensor counts_E = expert_counts(experts_TK, options_.experts, tokens.kept_TK);
  Exchange exchange(counts_E.view({-1, local.count}).sum(1), parallel_.experts);
  const Permutation sent = make_permutation(experts_TK, tokens.kept_TK, all, exchange.sent_rows());
  const at::Tensor sent_R1 = experts_TK.flatten().index_select(0, sent.slot_of_row).unsqueeze(1);
  return {exchange, sent, exchange.values(sent_R1)};
}

at::Tensor TokenDispatcher::all_to_all_forward(const Tokens& tokens, const LocalExperts& experts) const {
  const auto [exchange, sent, experts_R1] = route(tokens);
  const ExpertRange local = parallel_.local(options_.experts);
  const at::Tensor x_RH = exchange.forward(permute(tokens.x_TH, sent));
  const at::Tensor probs_R1 = exchange.forward(permute_slots(tokens.routing.probs_TK, sent).unsqueeze(1));
  const Permutation received = make_permutation(experts_R1, at::Tensor(), local, experts_R1.numel());
  const at::Tensor y_RH = experts(permute(x_RH, received), permute_slots(probs_R1, received), received);
  const at::Tensor returned_RH = exchange.backward(unpermute(y_RH, received, y_RH.scalar_type()));
  return unpermute(returned_RH, sent, sum_dtype(returned_RH));
}

}  // namespace teratron
