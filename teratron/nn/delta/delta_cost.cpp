#include "teratron/nn/delta/delta_cost.h"

#include <algorithm>

#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

// From the convolution to the gated norm. It saves its input; backward computes the rest again.
Operator core_operator(const std::string& name, const DeltaMixerOptions& options, const DeltaOptions& core,
                       const RankSizes& sizes) {
  const double heads = as_real(core.value_heads), K = as_real(core.key_dim), V = as_real(core.value_dim);
  const double chunk = as_real(std::min(core.chunk, sizes.batch.batch.sequence_length));
  const double width = as_real(core.width()), values = as_real(core.values());
  Operator op{.name = name + ".core", .kind = Operator::Kind::attention};
  op.flops = sizes.tokens * heads * (2.0 * chunk * (3.0 * K + 2.0 * V) + 6.0 * K * V);
  op.masked_flops = sizes.tokens * heads * chunk * (3.0 * K + 2.0 * V);
  op.bytes = sizes.tokens * (width + values) * sizes.element;
  op.saved = sizes.tokens * width * sizes.element;
  const double ranks = as_real(sizes.batch.context_parallel);
  if (options.passes_states && ranks > 1.0) {
    // Each rank runs its tokens twice, and with an identity in place of the state; all have the transitions.
    op.flops += sizes.tokens * heads * (2.0 * chunk * (6.0 * K + 2.0 * V) + 6.0 * K * (K + V));
    op.masked_flops += sizes.tokens * heads * chunk * (6.0 * K + 2.0 * V);
    op.saved += sizes.tokens * as_real(core.channels()) * sizes.element +
                ranks * sizes.samples * heads * K * K * sizes.statistic;
  }
  // In fp32: the columns and what follows them, with keys for every head of values, and the tiles of chunks.
  const double wide = sizes.tokens * sizes.statistic;
  const double columns = 4.0 * wide * (width + 2.0 * heads * K), tiles = wide * heads * chunk;
  op.forward_peak = op.saved + columns + 5.0 * tiles;
  op.backward_peak = op.saved + 2.0 * columns + 9.0 * tiles + sizes.residual_stream;
  // Megatron-LM's log counts the recurrence, not its chunks.
  op.logged_flops = sizes.tokens * (2.0 * as_real(options.conv_kernel * core.channels()) +
                                    8.0 * as_real(core.value_heads) * V * V);
  return op;
}

}  // namespace

std::vector<Operator> delta_operators(const std::string& name, const DeltaMixerOptions& options,
                                      const RankSizes& sizes) {
  const DeltaOptions core = delta_part(options.core, static_cast<int64_t>(sizes.shards));
  const bool fp8 = sizes.batch.fp8;
  return {column_operator(name + ".in_proj", sizes, as_real(core.width()), fp8),
          core_operator(name, options, core, sizes),
          row_operator(name + ".out_proj", sizes, as_real(core.values()), fp8)};
}

}  // namespace teratron
