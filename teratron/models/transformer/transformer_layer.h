// A transformer layer, pre-norm (Radford et al. 2019): self-attention, in a decoder cross attention to the
// output of an encoder (Vaswani et al. 2017), feed-forward network. Optional: norms of the outputs instead of
// the inputs (OLMo 2), attention and feed-forward network side by side (GPT-J, GPT-NeoX).
#pragma once

#include <functional>
#include <memory>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/feed_forward.h"

namespace teratron {

/// Creates a layer's feed-forward network with the parameters of `scope` ("...layers.3.mlp").
using FeedForwardFactory = std::function<std::unique_ptr<FeedForward>(const Scope& scope)>;
/// Makes the experts of a layer; null for a layer with an MLP. The arguments must outlive the factory.
FeedForwardFactory experts_factory(const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& parallel, const Mesh& mesh);

class TransformerLayer : public Layer {
 public:
  /// `layer` counts from 0 through the whole stack. Without a factory the feed-forward network is an Mlp.
  TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                   const TensorParallel& parallel, const FeedForwardFactory& make_feed_forward = nullptr);
  /// `state`, if not null, is a KeyValueCache from the first call on.
  Hidden forward(const Hidden& x, const LayerContext& context, LayerState* state) override;

 private:
  struct LayerInput {
    Normed normed;
    ResidualDropout residual;  // of x, or of norm(x) with a post-layernorm residual
  };
  Hidden forward_norm_outputs(const Hidden& x, const LayerContext& context, KeyValueCache* cache);
  Hidden forward_parallel(const Hidden& x, const LayerContext& context, KeyValueCache* cache);
  at::Tensor add_normed(Norm& norm, const Hidden& branch, const at::Tensor& residual_SBH,
                        const LayerContext& context, uint64_t site) const;
  LayerInput pre_norm(Norm& norm, const Hidden& x, const LayerContext& context, uint64_t site) const;

  struct CrossBranch {
    CrossBranch(const Scope& scope, const TransformerConfig& config, int64_t layer,
                const TensorParallel& parallel);
    Norm norm;
    CrossAttention attention;
  };

  double hidden_dropout_;
  bool residual_after_norm_;
  bool norm_outputs_;
  bool parallel_residual_;
  uint64_t site_;
  TensorParallel parallel_;
  Norm attention_norm_;
  SelfAttention attention_;
  std::unique_ptr<CrossBranch> cross_;  // null without cross attention
  Norm mlp_norm_;
  std::unique_ptr<FeedForward> mlp_;
};

}  // namespace teratron
