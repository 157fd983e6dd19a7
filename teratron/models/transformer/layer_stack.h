// Consecutive layers of a model, such as an encoder or a decoder, with activation recomputation and
// offloading of saved activations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/models/transformer/config.h"
#include "teratron/nn/layer.h"
#include "teratron/nn/offload/activation_offload.h"

namespace teratron {

/// Whether the layer of an FP8 model is in bf16. It counts from 0 through the whole stack.
bool stays_in_bf16(const TransformerConfig& config, int64_t layer);

/// Layers of a stage that run forward and backward together.
struct LayerUnit {
  LayerRange layers;  // counted from the stage's first
  bool recomputed = false;
};
/// The units of a stage with `count` layers, in order.
std::vector<LayerUnit> layer_units(const RecomputeConfig& recompute, int64_t count);
/// How the first `layers` layers of units are offloaded; a unit with its first layer.
OffloadSchedule offload_schedule(const std::vector<LayerUnit>& units, int64_t layers);

/// Creates a layer, whose number counts from 0 through the whole stack, with the parameters of `scope`.
using LayerFactory = std::function<std::unique_ptr<Layer>(const Scope& scope, int64_t layer)>;

class LayerStack {
 public:
  /// `layers`: those of this stage. Parameters of layer i are named `scope`.i ("decoder.layers.3"). Of
  /// `config` the stack uses the number of layers, which of them stay in bf16, and what is recomputed and
  /// offloaded.
  LayerStack(const Scope& scope, const TransformerConfig& config, const LayerRange& layers,
             const TensorParallel& parallel, const LayerFactory& make_layer);
  /// `states`: of make_states(), in a generation, when nothing is recomputed; else null. Offloading frees
  /// x_SBH unless the caller keeps it.
  Hidden forward(at::Tensor x_SBH, const LayerContext& context, LayerStates* states);
  /// One for each layer.
  std::unique_ptr<LayerStates> make_states() const;
  /// Called with the output of each layer and its name; recomputed layers call it again in backward.
  void set_activation_hook(const ActivationHook& hook) { hook_ = hook; }

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Layer> layer;
    std::vector<Parameter*> parameters;
  };
  Hidden forward_units(Hidden x, const LayerContext& context, ActivationOffload::Pass* offload);
  Hidden forward_layer(size_t i, const Hidden& x, const LayerContext& context, LayerState* state);
  Hidden recompute_unit(const Hidden& x, const LayerContext& context, const LayerRange& unit);

  ActivationHook hook_;
  Group shared_by_;
  std::vector<Entry> layers_;
  std::vector<LayerUnit> units_;
  std::unique_ptr<ActivationOffload> offload_;  // null: nothing is offloaded
};

}  // namespace teratron
