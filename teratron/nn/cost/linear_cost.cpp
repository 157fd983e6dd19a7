#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

Operator gemm_operator(std::string name, const RankSizes& sizes, double in, double out) {
  return {.name = std::move(name),
          .kind = Operator::Kind::gemm,
          .flops = 2.0 * sizes.tokens * in * out,
          .bytes = (sizes.tokens * (in + out) + in * out) * sizes.element};
}

Operator column_operator(std::string name, const RankSizes& sizes, double out, bool fp8) {
  const double width = as_real(sizes.states.width), whole = sizes.whole_hidden();
  const double y = sizes.tokens * out * sizes.element;
  Operator op = gemm_operator(std::move(name), sizes, width, out);
  op.fp8 = fp8;
  op.saved = column_input(sizes, width, fp8);
  const double input = op.saved + sizes.gathered(whole) + sizes.gemm_workspace;
  op.forward_peak = input + y + (fp8 ? cast_gradient(sizes, whole) : 0.0);
  op.backward_peak = input + 2.0 * y + whole + sizes.residual_stream + (fp8 ? cast_gradient(sizes, y) : 0.0);
  return op;
}

Operator row_operator(std::string name, const RankSizes& sizes, double in, bool fp8) {
  Operator op = gemm_operator(std::move(name), sizes, in, as_real(sizes.states.width));
  op.fp8 = fp8;
  op.saved = row_input(sizes, in, fp8);
  op.forward_peak = op.saved + sizes.gemm_workspace + row_output(sizes);
  op.backward_peak = op.saved + sizes.gemm_workspace + row_gradient(sizes) +
                     (fp8 ? cast_gradient(sizes, sizes.whole_hidden()) : 0.0) +
                     sizes.tokens * in * sizes.element;
  return op;
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
