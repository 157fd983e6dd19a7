#include "teratron/kernels/common/state_rows.h"

#include <ATen/ATen.h>

namespace teratron {

StateRows StateRows::narrow(int64_t first, int64_t count) const {
  return {from_R.narrow(0, first, count), to_R.narrow(0, first, count)};
}

at::Tensor StateRows::read(const at::Tensor& table) const {
  std::vector<int64_t> broadcast(table.dim(), 1);
  broadcast[0] = from_R.size(0);
  return table.index_select(0, from_R.clamp_min(0)).masked_fill_(from_R.lt(0).view(broadcast), 0.0);
}

void StateRows::write(const at::Tensor& table, const at::Tensor& states_R) const {
  table.index_copy_(0, to_R, states_R.to(table.scalar_type()));
}

}  // namespace teratron
