#include "teratron/nn/mamba/mamba_cost.h"

#include <algorithm>

#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

// From the convolution to the gated norm. It saves its input; backward computes the rest again.
Operator core_operator(const std::string& name, const MambaOptions& core, const RankSizes& sizes,
                       bool passes_states) {
  const double heads = as_real(core.heads), d = as_real(core.inner()), gn = as_real(core.groups * core.state);
  const double chunk = as_real(std::min(core.chunk, sizes.batch.batch.sequence_length));
  const double width = as_real(core.width());
  Operator op{.name = name + ".core", .kind = Operator::Kind::attention};
  op.flops = sizes.tokens * (2.0 * chunk * (gn + d) + 4.0 * d * as_real(core.state));
  op.masked_flops = sizes.tokens * chunk * (gn + d);
  op.bytes = sizes.tokens * (width + d) * sizes.element;
  op.saved = sizes.tokens * width * sizes.element;
  // Context-parallel ranks save what they exchange, too: x, B, C and dt, and y; or what they convolve.
  const bool cut = sizes.batch.context_parallel > 1;
  if (cut) op.saved += sizes.tokens * (passes_states ? as_real(core.channels()) : width) * sizes.element;
  if (cut && passes_states) op.flops *= 2.0, op.masked_flops *= 2.0;  // each rank runs its tokens twice
  // In fp32: the columns and what follows them, and the tiles of the chunks.
  const double wide = sizes.tokens * sizes.statistic;
  const double columns = 6.0 * wide * width, tiles = wide * heads * chunk;
  op.forward_peak = op.saved + columns + 3.0 * tiles;
  op.backward_peak = op.saved + 2.0 * columns + 5.0 * tiles + sizes.residual_stream;
  return op;
}

}  // namespace

std::vector<Operator> mamba_operators(const std::string& name, const MambaMixerOptions& options,
                                      const RankSizes& sizes) {
  const MambaOptions core = mamba_part(options.core, static_cast<int64_t>(sizes.shards));
  const bool fp8 = sizes.batch.fp8;
  std::vector<Operator> all = {column_operator(name + ".in_proj", sizes, as_real(core.width()), fp8),
                               core_operator(name, core, sizes, options.passes_states),
                               row_operator(name + ".out_proj", sizes, as_real(core.inner()), fp8)};
  // Megatron-LM's log takes every model's d for twice the hidden size.
  const double hidden = as_real(options.hidden), d = 2.0 * hidden / sizes.shards;
  const double beside = as_real(core.width() - 2 * core.inner());  // rows of B, C and dt
  all[0].logged_flops = 2.0 * sizes.tokens * hidden * (2.0 * d + beside);
  all[1].logged_flops = 7.0 * sizes.tokens * d * as_real(core.state);
  all[2].logged_flops = 2.0 * sizes.tokens * d * hidden;
  return all;
}

}  // namespace teratron
