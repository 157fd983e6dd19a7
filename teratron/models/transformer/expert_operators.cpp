#include "teratron/models/transformer/expert_operators.h"

namespace teratron {

namespace {

struct Sizes {
  double hidden, wide, ffn;  // of a token, a row of fc1's output on this rank, of fc2's input
  double tokens, rows;       // of this rank before dispatch, of its experts
};

Sizes sizes_of(const TransformerConfig& config, const RankBatch& batch, const RankSizes& sizes) {
  const MoeOptions& options = config.experts.options;
  const auto shards = static_cast<double>(batch.expert_tensor_parallel);
  const double ffn = static_cast<double>(options.experts.ffn_hidden) / shards;
  // Ranks of the expert tensor-parallel group see each other's tokens, unless all have the same.
  const double seen = batch.sequence_parallel || batch.tensor_parallel == 1 ? shards : 1.0;
  return {.hidden = static_cast<double>(config.hidden),
          .wide = ffn * static_cast<double>(parts_of(config.activation)),
          .ffn = ffn,
          .tokens = sizes.local_tokens,
          .rows = sizes.local_tokens * static_cast<double>(options.router.routing.topk) * seen};
}

Operator routed(const TransformerConfig& config, const RankBatch& batch, const RankSizes& sizes) {
  const Sizes n = sizes_of(config, batch, sizes);
  const double element = sizes.element, slots = n.rows;
  const auto experts = static_cast<double>(config.experts.options.router.experts);
  Operator op{.kind = Operator::Kind::gemm, .flops = 2.0 * n.rows * n.hidden * (n.wide + n.ffn)};
  op.bytes = n.rows * (3.0 * n.hidden + n.wide + n.ffn) * element + n.tokens * n.hidden * element;
  // The router's input and scores, rows and pre-activations of the experts, and where rows come from.
  const double scores = n.tokens * experts * sizes.statistic, places = 6.0 * slots * 8.0;
  op.saved = n.tokens * n.hidden * element + 3.0 * scores + n.rows * (n.hidden + n.wide) * element + places;
  const double out = n.rows * n.hidden * element, sums = n.tokens * n.hidden * 4.0;
  op.forward_peak = op.saved + n.rows * n.ffn * element + out + sums;
  op.backward_peak = op.saved + out + n.rows * (n.wide + 2.0 * n.ffn) * element + out + sums;
  return op;
}

void add_shared(Operator& op, const TransformerConfig& config, const RankSizes& sizes) {
  const std::optional<SharedExpertsOptions>& shared = config.experts.options.shared;
  if (!shared) return;
  const double hidden = static_cast<double>(config.hidden);
  const double ffn = static_cast<double>(shared->mlp.ffn_hidden) / sizes.shards;
  const double wide = ffn * static_cast<double>(parts_of(config.activation));
  for (const Operator& gemm :
       {gemm_operator("", sizes, hidden, wide), gemm_operator("", sizes, ffn, hidden)}) {
    op.flops += gemm.flops;
    op.bytes += gemm.bytes;
  }
  const double saved = sizes.column_input(hidden, false) + sizes.tokens * (wide + ffn) * sizes.element;
  op.saved += saved;
  op.forward_peak += saved;
  op.backward_peak += saved + sizes.tokens * wide * sizes.element;
}

}  // namespace

Operator experts_operator(std::string name, const TransformerConfig& config, const RankBatch& batch) {
  const RankSizes sizes(config, batch);
  Operator op = routed(config, batch, sizes);
  op.name = std::move(name);
  add_shared(op, config, sizes);
  op.forward_peak += sizes.gemm_workspace + sizes.hidden;
  op.backward_peak += sizes.gemm_workspace + 2.0 * sizes.residual_stream;
  if (!config.experts.options.recompute) return op;
  op.saved = sizes.hidden;
  return op;
}

}  // namespace teratron
