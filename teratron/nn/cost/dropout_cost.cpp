#include "teratron/nn/cost/dropout_cost.h"

namespace teratron {

Operator dropout_rows_operator(std::string name, int64_t score_heads, const RankSizes& sizes) {
  const double rows =
      (sizes.drops() ? sizes.local_tokens : 0.0) + sizes.tokens * as_real(score_heads) / sizes.shards;
  Operator op{.name = std::move(name), .kind = Operator::Kind::pointwise};
  op.add_saved(rows * id_bytes);
  return op;
}

}  // namespace teratron
