// A mixer of two projections around a recurrence: in_proj, a core (recurrent_core.h), out_proj. Of a sequence
// it keeps the convolution's last inputs and the recurrence's state, of constant size. Context-parallel ranks
// exchange tokens for heads around the core, which sees whole sequences, or pass its states on
// (state_passing.h).
#pragma once

#include "teratron/nn/mixer.h"
#include "teratron/nn/recurrent/recurrent_core.h"
#include "teratron/nn/states/slot_state.h"

namespace teratron {

struct RecurrentMixerOptions {
  int64_t hidden = 0;
  /// Rows of in_proj, which ranks cut separately, and columns of out_proj. Of all ranks.
  std::vector<int64_t> segments;
  int64_t inner = 0;
  std::vector<double> multipliers = {};  // of what in_proj gives for each segment; empty: none
  bool bias = false;                     // of the projections
  Init in_init;
  Init out_init;
  // Types of what generation keeps; nullopt: the model's, and that of the arithmetic.
  std::optional<at::ScalarType> conv_state_dtype = {};
  std::optional<at::ScalarType> recurrent_state_dtype = {};
  /// Context-parallel ranks have parts of the tokens and all heads, not all tokens and parts of the heads.
  bool passes_states = false;
};

class RecurrentMixer : public Mixer {
 public:
  RecurrentMixer(const Scope& scope, const RecurrentMixerOptions& options, const TensorParallel& parallel,
                 std::unique_ptr<const RecurrentCore> core);
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(LayerState* before) const override;

 private:
  at::Tensor train(const at::Tensor& columns_SB, const LayerContext& context) const;
  /// Rows of a generation: [T, 1, F] -> [T, 1, D].
  at::Tensor generate(const at::Tensor& columns_T1, const LayerContext& context, LayerStates& states) const;

  RecurrentMixerOptions options_;
  std::vector<int64_t> segments_;  // of this rank
  at::TensorOptions tensors_;
  ColumnLinear in_;
  std::unique_ptr<const RecurrentCore> core_;
  RowLinear out_;
};

}  // namespace teratron
