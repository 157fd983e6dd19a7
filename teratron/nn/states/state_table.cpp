#include "teratron/nn/states/state_table.h"

#include <ATen/ATen.h>

namespace teratron {

StateTable StateTable::narrow(int64_t first, int64_t count) const {
  return {states, from_R.narrow(0, first, count), to_R.narrow(0, first, count)};
}

at::Tensor StateTable::read() const {
  std::vector<int64_t> broadcast(states.dim(), 1);
  broadcast[0] = from_R.size(0);
  return states.index_select(0, from_R.clamp_min(0)).masked_fill_(from_R.lt(0).view(broadcast), 0.0);
}

void StateTable::write(const at::Tensor& states_R) const {
  states.index_copy_(0, to_R, states_R.to(states.scalar_type()));
}

}  // namespace teratron
