#include "teratron/models/transformer/layer_stack.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "teratron/nn/recompute.h"

namespace teratron {

namespace {

// What is differentiated of a context.
std::array<at::Tensor*, 2> differentiable(LayerContext& context) {
  return {&context.memory.hidden_SBH, &context.distance_bias};
}

}  // namespace

bool stays_in_bf16(const TransformerConfig& config, int64_t layer) {
  return layer < config.bf16_layers_at_start || config.layers - 1 - layer < config.bf16_layers_at_end;
}

std::vector<LayerUnit> layer_units(const RecomputeConfig& recompute, int64_t count) {
  using Method = RecomputeConfig::Method;
  const bool recomputes = recompute.granularity == RecomputeConfig::Granularity::layers;
  std::vector<LayerUnit> units;
  for (int64_t i = 0; i < count; i += units.back().layers.count) {
    const bool in_block = recomputes && recompute.method == Method::block && i < recompute.layers;
    const bool uniform = recomputes && recompute.method == Method::uniform;
    units.push_back({{i, uniform ? std::min(recompute.layers, count - i) : 1}, uniform || in_block});
  }
  return units;
}

OffloadSchedule offload_schedule(const std::vector<LayerUnit>& units, int64_t layers) {
  const auto offloaded = std::count_if(
      units.begin(), units.end(), [layers](const LayerUnit& unit) { return unit.layers.first < layers; });
  return {.steps = std::ssize(units), .offloaded = offloaded};
}

LayerStack::LayerStack(const Scope& scope, const TransformerConfig& config, const LayerRange& layers,
                       const TensorParallel& parallel, const LayerFactory& make_layer)
    : units_(layer_units(config.recompute, layers.count)) {
  if (config.recompute.distribute_inputs) shared_by_ = parallel.group;
  const OffloadSchedule schedule = offload_schedule(units_, config.offload.layers);
  if (schedule.offloaded > 0)
    offload_ = std::make_unique<ActivationOffload>(OffloadOptions{schedule, config.offload.min_bytes});
  std::deque<Parameter>& all = scope.set().all();
  for (int64_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    const Scope own = scope / std::to_string(layer);
    const size_t before = all.size();
    Entry& entry = layers_.emplace_back(
        Entry{own.prefix(), make_layer(stays_in_bf16(config, layer) ? own : own.with_fp8(), layer), {}});
    for (size_t i = before; i < all.size(); ++i) entry.parameters.push_back(&all[i]);
  }
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

Hidden LayerStack::forward(at::Tensor x_SBH, const LayerContext& context, LayerStates* states) {
  Hidden x{std::move(x_SBH)};
  if (!states) {
    const bool offloads = offload_ && at::GradMode::is_enabled();
    const auto pass = offloads ? offload_->begin_pass(x.x_SBH.device()) : nullptr;
    return forward_units(std::move(x), context, pass.get());
  }
  for (size_t i = 0; i < layers_.size(); ++i) x = forward_layer(i, x, context, (*states)[i]);
  return x;
}

std::unique_ptr<LayerStates> LayerStack::make_states() const {
  auto states = std::make_unique<LayerStates>();
  for (const Entry& entry : layers_) states->add(entry.layer->make_state());
  return states;
}

Hidden LayerStack::forward_units(Hidden x, const LayerContext& context, ActivationOffload::Pass* offload) {
  for (int64_t step = 0; const auto& [layers, recomputed] : units_) {
    {
      const auto scope = offload ? offload->save_step(step) : nullptr;
      x = recomputed ? recompute_unit(x, context, layers)
                     : forward_layer(static_cast<size_t>(layers.first), x, context, nullptr);
    }
    if (offload) offload->end_step(step, x.x_SBH);
    ++step;
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
