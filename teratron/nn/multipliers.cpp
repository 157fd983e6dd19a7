#include "teratron/nn/multipliers.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

at::Tensor scale_parts(const at::Tensor& x, const std::vector<int64_t>& sizes,
                       const std::vector<double>& factors) {
  TERATRON_ASSERT(sizes.size() == factors.size(), "{} factors for {} parts", factors.size(), sizes.size());
  std::vector<at::Tensor> parts = x.split_with_sizes(sizes, -1);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i] * factors[i];
  return at::cat(parts, -1);
}

}  // namespace teratron
