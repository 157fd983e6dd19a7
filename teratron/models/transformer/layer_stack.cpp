#include "teratron/models/transformer/layer_stack.h"

#include <algorithm>
#include <array>
#include <utility>

#include "teratron/nn/recompute.h"

namespace teratron {

namespace {

bool stays_in_bf16(const TransformerConfig& config, int64_t layer) {
  return layer < config.bf16_layers_at_start || config.layers - 1 - layer < config.bf16_layers_at_end;
}

// What is differentiated of a context.
std::array<at::Tensor*, 2> differentiable(LayerContext& context) {
  return {&context.memory.hidden_SBH, &context.distance_bias};
}

}  // namespace

LayerStack::LayerStack(const Scope& scope, const TransformerConfig& config, const LayerRange& layers,
                       const TensorParallel& parallel, const LayerFactory& make_layer)
    : recompute_(config.recompute) {
  if (recompute_.distribute_inputs) shared_by_ = parallel.group;
  std::deque<Parameter>& all = scope.set().all();
  for (int64_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    const Scope own = scope / std::to_string(layer);
    const size_t before = all.size();
    Entry& entry = layers_.emplace_back(
        Entry{own.prefix(), make_layer(stays_in_bf16(config, layer) ? own : own.with_fp8(), layer), {}});
    for (size_t i = before; i < all.size(); ++i) entry.parameters.push_back(&all[i]);
  }
}

size_t LayerStack::unit_size(size_t i) const {
  if (recompute_.granularity != RecomputeConfig::Granularity::layers) return 0;
  const auto layers = static_cast<size_t>(recompute_.layers);
  if (recompute_.method == RecomputeConfig::Method::block) return i < layers ? 1 : 0;
  return std::min(layers, layers_.size() - i);
}

Hidden LayerStack::forward_layer(size_t i, const Hidden& x, const LayerContext& context, LayerState* state) {
  if (!hook_) return layers_[i].layer->forward(x, context, state);
  LayerContext watched = context;
  watched.notify = [this, ids_B = context.sample_ids_B](const std::string& part, const at::Tensor& output) {
    if (hook_) hook_(part, output, ids_B);
  };
  Hidden y = layers_[i].layer->forward(x, watched, state);
  hook_(layers_[i].name, y.x_SBH, context.sample_ids_B);
  return y;
}

Hidden LayerStack::forward(const at::Tensor& x_SBH, const LayerContext& context, LayerStates* states) {
  Hidden x{x_SBH};
  for (size_t i = 0; i < layers_.size();) {
    const size_t unit = states ? 0 : unit_size(i);
    if (unit > 0) {
      x = recompute_unit(x, context, {static_cast<int64_t>(i), static_cast<int64_t>(unit)});
    } else {
      x = forward_layer(i, x, context, states ? &states->at(i) : nullptr);
    }
    i += std::max<size_t>(unit, 1);
  }
  return x;
}

Hidden LayerStack::recompute_unit(const Hidden& x, const LayerContext& context, const LayerRange& unit) {
  RecomputeOptions options{.shared_by = shared_by_};
  for (int64_t i = unit.first; i < unit.first + unit.count; ++i) {
    const std::vector<Parameter*>& own = layers_[i].parameters;
    options.parameters.insert(options.parameters.end(), own.begin(), own.end());
  }
  // What is differentiated is an input of the function, never captured.
  std::vector<at::Tensor> inputs{x.x_SBH};
  LayerContext captured = context;
  std::array<bool, 2> given{};
  for (size_t i = 0; at::Tensor* const tensor : differentiable(captured)) {
    given.at(i) = tensor->defined();
    if (given.at(i++)) inputs.push_back(std::exchange(*tensor, at::Tensor()));
  }
  // Bias gradients are left to the same consumers, hence computed in the same order, as without
  // recomputation.
  const auto output_bias = std::make_shared<Parameter*>(nullptr);
  const RecomputeFunction layers = [this, captured, given, unit, x_bias = x.bias,
                                    output_bias](at::TensorList values) {
    LayerContext whole = captured;
    for (size_t i = 0, next = 1; at::Tensor *const tensor : differentiable(whole)) {
      if (given.at(i++)) *tensor = values[next++];
    }
    Hidden y{values[0], x_bias};
    for (int64_t i = unit.first; i < unit.first + unit.count; ++i) {
      y = forward_layer(static_cast<size_t>(i), y, whole, nullptr);
    }
    *output_bias = y.bias;
    return y.x_SBH;
  };
  const at::Tensor y_SBH = recompute(layers, inputs, options);
  return {y_SBH, *output_bias};
}

}  // namespace teratron
