#include "teratron/nn/cost/rank_sizes.h"

#include "teratron/base/error.h"
#include "teratron/kernels/gemm/launchers.h"

namespace teratron {

RankSizes::RankSizes(const HiddenStates& hidden_states, const RankBatch& rank_batch)
    : states(hidden_states),
      batch(rank_batch),
      samples(as_real(batch.batch.samples)),
      queries(as_real(batch.batch.sequence_length) / as_real(batch.context_parallel)),
      keys(as_real(batch.batch.sequence_length)),
      tokens(samples * queries),
      local_tokens(batch.sequence_parallel ? tokens / as_real(batch.tensor_parallel) : tokens),
      element(as_real(size_of(batch.dtype))),
      statistic(batch.dtype == Dtype::f64 ? 8.0 : 4.0),
      shards(as_real(batch.tensor_parallel)),
      gathers(batch.sequence_parallel && batch.tensor_parallel > 1),
      residual_stream(local_tokens * as_real(states.width) * (states.fp32_residual ? 4.0 : element)),
      hidden(local_tokens * as_real(states.width) * element),
      gemm_workspace(batch.gpu ? as_real(cuda::gemm_workspace) : 0.0) {}

RankSizes RankSizes::of_memory() const {
  TERATRON_ASSERT(batch.memory, "the batch has no memory");
  RankBatch own = batch;
  own.batch = *batch.memory;
  return RankSizes(states, own);
}

}  // namespace teratron
