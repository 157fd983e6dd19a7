#include "teratron/models/transformer/select_positions.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

// With zeros for those that other context-parallel ranks have.
at::Tensor select_here(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                       const TensorParallel& parallel, const TokenPlaces& places) {
  const auto& [packed, context] = places;
  const int64_t samples = positions_NB.size(1), tokens = hidden_SBH.size(0) * hidden_SBH.size(1);
  at::Tensor token_NB = packed.defined()
                            ? positions_NB + packed.starts_B
                            : positions_NB * samples + at::arange(samples, positions_NB.options());
  at::Tensor elsewhere_NB;
  if (context.size() > 1) {  // among the tokens of all ranks, rank by rank
    const at::Tensor& order = context.cut->order;
    token_NB = order.index_select(0, token_NB.reshape(-1)).view_as(token_NB) -
               context.group.rank * (order.numel() / context.size());
  }
  if (parallel.sequence_parallel) token_NB = token_NB - parallel.group.rank * tokens;
  if (parallel.sequence_parallel || context.size() > 1) {
    elsewhere_NB = token_NB.lt(0).logical_or_(token_NB.ge(tokens));
    token_NB = token_NB.masked_fill(elsewhere_NB, 0);
  }
  const at::Tensor selected_NBH = hidden_SBH.reshape({tokens, -1})
                                      .index_select(0, token_NB.reshape(-1))
                                      .view({positions_NB.size(0), samples, hidden_SBH.size(2)});
  if (!elsewhere_NB.defined()) return selected_NBH;
  const at::Tensor known_NBH = selected_NBH.masked_fill(elsewhere_NB.unsqueeze(-1), 0);
  return parallel.sequence_parallel ? reduce_from(known_NBH, parallel.group) : known_NBH;
}

}  // namespace

at::Tensor select_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                            const TensorParallel& parallel, const TokenPlaces& places) {
  return reduce_from(select_here(hidden_SBH, positions_NB, parallel, places), places.context_parallel.group);
}

at::Tensor select_own_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                                const TensorParallel& parallel, const TokenPlaces& places) {
  return reduce_scatter(select_here(hidden_SBH, positions_NB, parallel, places), 0,
                        places.context_parallel.group);
}

}  // namespace teratron
