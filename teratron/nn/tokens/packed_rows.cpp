#include "teratron/nn/tokens/packed_rows.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor with_padding(const at::Tensor& x_T1, const PackedRows& rows) {
  const int64_t samples = rows.starts_B.size(0);
  std::vector<int64_t> shape = x_T1.sizes().vec();
  shape[0] = rows.length * samples;
  shape.erase(shape.begin() + 1);
  const at::Tensor zeros = at::zeros(shape, x_T1.options().requires_grad(false));
  return zeros.index_copy(0, rows.tokens_T, x_T1.squeeze(1)).unflatten(0, {rows.length, samples});
}

at::Tensor without_padding(const at::Tensor& x_SB, const PackedRows& rows) {
  return x_SB.flatten(0, 1).index_select(0, rows.tokens_T).unsqueeze(1);
}

}  // namespace teratron
