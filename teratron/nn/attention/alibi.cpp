#include "teratron/nn/attention/alibi.h"

#include <bit>
#include <cmath>

#include <ATen/ATen.h>

namespace teratron {

std::vector<double> alibi_slopes(int64_t heads) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  std::vector<double> slopes;
  for (int64_t h = 1; h <= below; ++h) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(below)));
  }
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2) {
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(h) / static_cast<double>(below)));
  }
  return slopes;
}

at::Tensor alibi_slopes(int64_t heads, int64_t first, int64_t count, const at::TensorOptions& model) {
  const bool wide = c10::typeMetaToScalarType(model.dtype()) == at::kDouble;
  const at::Tensor all = at::tensor(alibi_slopes(heads), at::TensorOptions().dtype(at::kDouble));
  return all.narrow(0, first, count).to(model.device(), wide ? at::kDouble : at::kFloat);
}

}  // namespace teratron
