// A transformer layer: branches of the residual stream, one after the other. Self-attention, in a decoder
// cross attention to the output of an encoder (Vaswani et al. 2017), feed-forward network; pre-norm (Radford
// et al. 2019). Optional: norms of the outputs instead of the inputs (OLMo 2), branches side by side (GPT-J,
// GPT-NeoX), another mixer in place of attention.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/mixer.h"
#include "teratron/nn/norm.h"

namespace teratron {

/// Creates a part of a layer with the parameters of `scope` ("...layers.3.mlp").
using MixerFactory = std::function<std::unique_ptr<Mixer>(const Scope& scope)>;
/// What takes the place of self-attention or of the MLP; null: nothing does.
struct LayerParts {
  MixerFactory attention = nullptr;
  MixerFactory feed_forward = nullptr;
};
/// Makes the experts of a layer; null for a layer with an MLP. The arguments must outlive the factory.
MixerFactory experts_factory(const TransformerConfig& config, int64_t layer, const TensorParallel& parallel,
                             const Mesh& mesh);

class TransformerLayer : public Layer {
 public:
  /// `layer` counts from 0 through the whole stack.
  TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                   const TensorParallel& parallel, const LayerParts& parts = {});
  Hidden forward(const Hidden& x, const LayerContext& context, LayerState* state) override;
  /// LayerStates, one for each branch.
  std::unique_ptr<LayerState> make_state() const override;

 private:
  struct Branch {
    Norm norm;
    std::unique_ptr<Mixer> mixer;
    uint64_t dropout_site;
  };
  /// What a branch reads, and what it is added to.
  struct Input {
    Normed normed;
    at::Tensor residual_SBH;
  };
  Input read(Branch& branch, const Hidden& h) const;
  Hidden add(Branch& branch, const Input& input, const LayerContext& context, LayerState* state) const;

  double hidden_dropout_;
  bool residual_after_norm_;
  bool norm_outputs_;
  bool side_by_side_;
  uint64_t site_;
  TensorParallel parallel_;
  std::vector<Branch> branches_;
};

}  // namespace teratron
