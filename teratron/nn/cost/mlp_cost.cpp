#include "teratron/nn/cost/mlp_cost.h"

#include <algorithm>

#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

Operator mlp_operator(std::string name, const MlpOptions& options, const RankSizes& sizes) {
  const bool fp8 = sizes.batch.fp8;
  const double hidden = as_real(options.hidden), ffn = as_real(options.ffn_hidden) / sizes.shards;
  const double wide = ffn * as_real(parts_of(options.activation));
  Operator op = gemm_operator(std::move(name), sizes, hidden, wide);
  const Operator fc2 = gemm_operator("", sizes, ffn, hidden);
  op.fp8 = fp8;
  op.flops += fc2.flops;
  op.bytes += fc2.bytes;
  const double whole = sizes.whole_hidden(), gathered = sizes.gathered(whole);
  const double x = column_input(sizes, hidden, fp8), a = row_input(sizes, ffn, fp8);
  const double z = sizes.tokens * wide * sizes.element, da = sizes.tokens * ffn * sizes.element;
  op.saved = x + z + a;
  op.forward_peak = op.saved + sizes.gemm_workspace + gathered + row_output(sizes);
  // mlp.cpp frees a before dz is computed, unless dy is still being gathered; z after it. In FP8 dz exists in
  // the model's dtype while there are no scales yet.
  const double cast_dz = cast_gradient(sizes, z);
  const bool fused = sizes.batch.gpu && !fp8 && sizes.batch.dtype == Dtype::bf16;
  const double of_fc2 = op.saved + (fp8 ? cast_gradient(sizes, whole) + da : 0.0);
  const double of_activation = x + 2.0 * z + (fused ? 0.0 : da) + sizes.gathered(fp8 ? 0.0 : a) + cast_dz;
  const double of_fc1 = x + (fp8 ? cast_dz : z) + whole + gathered;
  op.backward_peak = sizes.gemm_workspace + row_gradient(sizes) + std::max({of_fc2, of_activation, of_fc1});
  return op;
}

}  // namespace teratron
