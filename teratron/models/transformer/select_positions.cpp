#include "teratron/models/transformer/select_positions.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"

namespace teratron {

at::Tensor select_positions(const at::Tensor& hidden_SBH, const at::Tensor& positions_NB,
                            const TensorParallel& parallel, const PackedRows& packed) {
  const int64_t samples = positions_NB.size(1), tokens = hidden_SBH.size(0) * hidden_SBH.size(1);
  at::Tensor token_NB = packed.defined()
                            ? positions_NB + packed.starts_B
                            : positions_NB * samples + at::arange(samples, positions_NB.options());
  at::Tensor elsewhere_NB;
  if (parallel.sequence_parallel) {
    token_NB = token_NB - parallel.group.rank * tokens;
    elsewhere_NB = token_NB.lt(0).logical_or_(token_NB.ge(tokens));
    token_NB = token_NB.masked_fill(elsewhere_NB, 0);
  }
  const at::Tensor selected_NBH = hidden_SBH.reshape({tokens, -1})
                                      .index_select(0, token_NB.reshape(-1))
                                      .view({positions_NB.size(0), samples, hidden_SBH.size(2)});
  if (!elsewhere_NB.defined()) return selected_NBH;
  return reduce_from(selected_NBH.masked_fill(elsewhere_NB.unsqueeze(-1), 0), parallel.group);
}

}  // namespace teratron
