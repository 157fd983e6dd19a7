// The mixer of a layer of Mamba-2 (Dao, Gu 2024): in_proj, a causal convolution, a selective state space
// model with a gated norm (kernels/mamba/mamba_core.h), out_proj. Tensor-parallel by heads and groups: z, x,
// B, C and dt are cut separately, and no number depends on the cut. Context-parallel ranks exchange parts of
// the sequence for parts of the heads before the convolution, and back before the gated norm; a group with
// fewer heads than ranks has B and C on several.
//
// It keeps of a sequence the convolution's last inputs and the state of each head, of constant size.
#pragma once

#include "teratron/kernels/mamba/mamba_core.h"
#include "teratron/nn/mixer.h"
#include "teratron/nn/slot_state.h"

namespace teratron {

struct MambaMixerOptions {
  int64_t hidden = 0;
  MambaOptions core;  // of all ranks
  int64_t conv_kernel = 4;
  bool conv_bias = true;
  bool bias = false;  // of the projections
  Init in_init;
  Init out_init;
  // Types of what generation keeps; nullopt: the model's, and that of the arithmetic.
  std::optional<at::ScalarType> conv_state_dtype = {};
  std::optional<at::ScalarType> ssm_state_dtype = {};
};

/// Rows of in_proj's weight, and channels of the convolution, which ranks cut separately.
std::vector<int64_t> mamba_segments(const MambaOptions& core);
std::vector<int64_t> mamba_conv_segments(const MambaOptions& core);
/// The sizes of one of `ranks`, which divides heads and groups.
MambaOptions mamba_part(MambaOptions core, int64_t ranks);
/// Whether context-parallel ranks can divide the heads of a tensor-parallel one.
bool divides_heads(const MambaOptions& core, int64_t ranks);

class MambaMixer : public Mixer {
 public:
  MambaMixer(const Scope& scope, const MambaMixerOptions& options, const TensorParallel& parallel);
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(LayerState* before) const override;

  /// The core's parameters; null: there is none.
  struct Parameters {
    Parameter *conv_weight, *conv_bias, *dt_bias, *A_log, *D, *norm_weight;

    MambaWeights tensors() const;
    at::Tensor anchor() const;  // grad_anchor()
    std::vector<Parameter*> all() const;
  };
  /// The part of the heads that a context-parallel rank has.
  struct HeadPart {
    MambaOptions core;
    at::Tensor columns;   // i64: of x, B, C and dt that are sent to each rank, rank by rank
    at::Tensor channels;  // i64: of the convolution
    int64_t first_head = 0;
  };

 private:
  at::Tensor train(const at::Tensor& zxbcdt_SBF, const LayerContext& context);
  at::Tensor train_by_heads(const at::Tensor& zxbcdt_SBF, const LayerContext& context);
  /// Rows of a generation: [T, 1, F] -> [T, 1, d].
  at::Tensor generate(const at::Tensor& zxbcdt_T1F, const LayerContext& context, LayerStates& states) const;

  MambaMixerOptions options_;
  MambaOptions core_;  // of this rank
  at::TensorOptions tensors_;
  ColumnLinear in_;
  Parameters parameters_;
  RowLinear out_;
  std::unique_ptr<HeadPart> heads_;  // null without context parallelism
};

}  // namespace teratron
