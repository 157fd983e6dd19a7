#include "teratron/nn/cost/norm_cost.h"

namespace teratron {

Operator norm_operator(std::string name, const NormOptions& options, const RankSizes& sizes) {
  const double statistics =
      sizes.local_tokens * sizes.statistic * (options.kind == NormKind::rms ? 1.0 : 2.0);
  const double x = sizes.residual_stream, y = sizes.hidden, wide = x > y ? x : 0.0;  // before the cast
  return {.name = std::move(name),
          .kind = Operator::Kind::normalization,
          .bytes = x + y,
          .saved = x + statistics,
          .forward_peak = x + statistics + y + wide,
          .backward_peak = x + statistics + y + wide + 2.0 * x};  // gradients of y, the residual and x
}

}  // namespace teratron
