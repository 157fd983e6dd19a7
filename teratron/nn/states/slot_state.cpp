#include "teratron/nn/states/slot_state.h"

#include <ATen/ATen.h>

namespace teratron {

namespace {

// Positions i64 [R] of the tokens `of_row`, or of all tokens if each row has one.
at::Tensor positions_at(const at::Tensor& of_row, const LayerContext& context) {
  const at::Tensor positions_T = context.positions_SB.select(1, 0);
  return of_row.defined() ? positions_T.index_select(0, of_row) : positions_T;
}

at::Tensor half_at(const at::Tensor& positions_R, const LayerContext& context) {
  return 2 * context.generation->slot_R + positions_R.bitwise_and(1);
}

// The state before a token is that of the position before.
StateRows rows_of_step(const LayerContext& context) {
  const at::Tensor first_R = positions_at(context.generation->first_R, context);
  const at::Tensor last_R = positions_at(context.generation->last_R, context);
  return {half_at(first_R + 1, context).masked_fill_(first_R.eq(0), -1), half_at(last_R, context)};
}

}  // namespace

StateRows slot_rows(const LayerContext& context) {
  if (!context.state_rows) return rows_of_step(context);
  if (!context.state_rows->to_R.defined()) *context.state_rows = rows_of_step(context);
  return *context.state_rows;
}

SlotState::SlotState(at::IntArrayRef shape, const at::TensorOptions& options)
    : shape_(shape.vec()), options_(options) {}

StateNeeds SlotState::needs() const {
  int64_t bytes = 2 * static_cast<int64_t>(options_.dtype().itemsize());
  for (const int64_t size : shape_) bytes *= size;
  return {.per_sequence = bytes};
}

void SlotState::allocate(const StateCapacity& capacity) {
  std::vector<int64_t> sizes = shape_;
  sizes.insert(sizes.begin(), 2 * capacity.slots);
  states_ = at::empty(sizes, options_);
}

void SlotState::copy(const StateCopies& copies) {
  const auto& [from, to] = copies.slots;
  for (size_t i = 0; i < from.size(); ++i)
    states_.narrow(0, 2 * to[i], 2).copy_(states_.narrow(0, 2 * from[i], 2));
}

}  // namespace teratron
