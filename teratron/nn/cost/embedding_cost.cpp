#include "teratron/nn/cost/embedding_cost.h"

namespace teratron {

Operator embedding_operator(const RankSizes& sizes) {
  const bool wide = sizes.residual_stream > sizes.hidden;
  const double whole = sizes.whole_hidden(), ids = sizes.tokens * id_bytes;
  // Ids elsewhere are looked up as row 0 and masked.
  const double masked = sizes.shards > 1.0 ? ids + sizes.tokens : 0.0;
  // Backward sorts ids and rows, and sums in fp32 over chunks of 32 tokens.
  const double sorting = 4.0 * ids + whole / sizes.element * 4.0 / 16.0;
  const double saved = masked + (sizes.drops() ? sizes.local_tokens * id_bytes : 0.0);
  return {.name = "embedding",
          .kind = Operator::Kind::embedding,
          .bytes = 2.0 * whole,
          .saved = saved,
          .forward_peak = saved + whole + (wide || sizes.drops() ? 2.0 : 1.0) * sizes.residual_stream,
          .backward_peak = saved + 2.0 * sizes.residual_stream + (wide ? whole : 0.0) + sorting};
}

Operator relative_bias_operator(std::string name, int64_t heads, const RankSizes& sizes) {
  const double biases = as_real(heads) / sizes.shards * (2.0 * sizes.keys - 1.0) * sizeof(float);
  return {.name = std::move(name),
          .kind = Operator::Kind::embedding,
          .bytes = biases,
          .saved = biases,
          .forward_peak = biases,
          .backward_peak = 2.0 * biases};
}

}  // namespace teratron
