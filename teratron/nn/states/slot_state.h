// The state of a recurrence, of constant size for each sequence: of a gated linear recurrence, of Mamba (Gu
// and Dao 2023), of linear attention.
#pragma once

#include "teratron/kernels/common/state_rows.h"
#include "teratron/nn/layer.h"

namespace teratron {

/// The rows of a SlotState's table before the first token of each row of the step, and after its last.
/// Computed once in a step, if the context has a place for them. LayerContext::positions_SB must be set.
StateRows slot_rows(const LayerContext& context);

/// A mixer reads the states before the tokens of a step and writes those after them:
///
///   const at::Tensor before_RC = state.read(context);
///   ...
///   state.write(after_RC, context);
///
/// A slot holds two states, of the last token at an even and at an odd position. A step of one token per row
/// therefore leaves what it reads, and the engine may run it again (generate/graphs/decode_graphs.h).
class SlotState final : public LayerState {
 public:
  /// A state has this shape on this rank.
  SlotState(at::IntArrayRef shape, const at::TensorOptions& options);
  /// [2 * slots, ...]
  const at::Tensor& table() const { return states_; }
  at::Tensor read(const LayerContext& context) const { return slot_rows(context).read(states_); }
  void write(const at::Tensor& states_R, const LayerContext& context) {
    slot_rows(context).write(states_, states_R);
  }

  StateNeeds needs() const override;
  void allocate(const StateCapacity& capacity) override;
  void copy(const StateCopies& copies) override;
  bool decodes_from_tables() const override { return true; }

 private:
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor states_;
};

}  // namespace teratron
