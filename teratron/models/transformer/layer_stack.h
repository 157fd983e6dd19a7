// Consecutive layers of a model, such as an encoder or a decoder, with activation recomputation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/models/transformer/config.h"
#include "teratron/nn/layer.h"

namespace teratron {

/// Creates a layer, whose number counts from 0 through the whole stack, with the parameters of `scope`.
using LayerFactory = std::function<std::unique_ptr<Layer>(const Scope& scope, int64_t layer)>;

class LayerStack {
 public:
  /// `layers`: those of this stage. Parameters of layer i are named `scope`.i ("decoder.layers.3"). Of
  /// `config` the stack uses the number of layers, which of them stay in bf16, and what is recomputed.
  LayerStack(const Scope& scope, const TransformerConfig& config, const LayerRange& layers,
             const TensorParallel& parallel, const LayerFactory& make_layer);
  /// `states`: one per layer, or null. With states (generation) nothing is recomputed.
  Hidden forward(const at::Tensor& x_SBH, const LayerContext& context, LayerStates* states);
  /// Called with the output of each layer and its name; recomputed layers call it again in backward.
  void set_activation_hook(const ActivationHook& hook) { hook_ = hook; }

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Layer> layer;
    std::vector<Parameter*> parameters;
  };
  /// Number of layers from `i` on that are recomputed together; 0: layer `i` keeps its activations.
  size_t unit_size(size_t i) const;
  Hidden forward_layer(size_t i, const Hidden& x, const LayerContext& context, LayerState* state);
  Hidden recompute_unit(const Hidden& x, const LayerContext& context, const LayerRange& unit);

  ActivationHook hook_;
  RecomputeConfig recompute_;
  Group shared_by_;
  std::vector<Entry> layers_;
};

}  // namespace teratron
