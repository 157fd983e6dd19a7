#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

Operator gemm_operator(std::string name, const RankSizes& sizes, double in, double out) {
  return {.name = std::move(name),
          .kind = Operator::Kind::gemm,
          .flops = 2.0 * sizes.tokens * in * out,
          .bytes = (sizes.tokens * (in + out) + in * out) * sizes.element};
}

double column_input(const RankSizes& sizes, double width, bool fp8) {
  return sizes.gathers ? sizes.local_tokens * width * sizes.element : row_input(sizes, width, fp8);
}

double row_input(const RankSizes& sizes, double width, bool fp8) {
  return sizes.tokens * width * (fp8 && sizes.batch.fp8_weight_gradients ? 1.0 : sizes.element);
}

double row_output(const RankSizes& sizes) {
  const bool fused = !sizes.drops() && sizes.shards == 1.0 && sizes.residual_stream == sizes.hidden;
  return sizes.residual_stream + (fused ? 0.0 : sizes.whole_hidden());
}

double row_gradient(const RankSizes& sizes) {
  const bool wide = sizes.residual_stream > sizes.hidden;
  return sizes.residual_stream + (sizes.drops() ? sizes.residual_stream : 0.0) + (wide ? sizes.hidden : 0.0) +
         sizes.gathered(sizes.whole_hidden());
}

double cast_gradient(const RankSizes& sizes, double bytes) {
  constexpr double copies = 2.0;  // as it is and transposed
  return sizes.batch.fp8 ? copies * bytes / sizes.element : 0.0;
}

}  // namespace teratron
