// The state of a recurrence, of constant size for each sequence: of a gated linear recurrence, of Mamba (Gu
// and Dao 2023), of linear attention.
#pragma once

#include "teratron/nn/layer.h"
#include "teratron/nn/states/state_table.h"

namespace teratron {

/// A mixer reads the states before the tokens of a step and writes those after them:
///
///   const at::Tensor before_RC = state.read(context);
///   ...
///   state.write(after_RC, context);
///
/// A slot holds two states, of the last token at an even and at an odd position. A step of one token per row
/// therefore leaves what it reads, and the engine may run it again (generate/graphs/decode_graphs.h).
/// LayerContext::positions_SB must be set.
class SlotState final : public LayerState {
 public:
  /// A state has this shape on this rank.
  SlotState(at::IntArrayRef shape, const at::TensorOptions& options);
  /// The states before the first token of each row and after its last.
  StateTable table(const LayerContext& context) const;
  at::Tensor read(const LayerContext& context) const { return table(context).read(); }
  void write(const at::Tensor& states_R, const LayerContext& context) { table(context).write(states_R); }

  StateNeeds needs() const override;
  void allocate(const StateCapacity& capacity) override;
  void copy(const StateCopies& copies) override;
  bool decodes_from_tables() const override { return true; }

 private:
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  at::Tensor states_;  // [2 * slots, ...]
};

}  // namespace teratron
