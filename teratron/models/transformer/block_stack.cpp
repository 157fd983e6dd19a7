#include "teratron/models/transformer/block_stack.h"

#include <algorithm>

#include <fmt/format.h>

namespace teratron {

namespace {

Scope scope_of(int64_t layer, const Scope& layers, const GPTConfig& config) {
  const Scope scope = layers / std::to_string(layer);
  const int64_t behind = config.layers - 1 - layer;
  return layer < config.bf16_layers_at_start || behind < config.bf16_layers_at_end ? scope : scope.in_fp8();
}

}  // namespace

BlockStack::BlockStack(const Scope& scope, const GPTConfig& config, const Range& layers,
                       const TensorParallel& parallel)
    : layers_(layers), recompute_(config.recompute) {
  if (config.recompute.distribute_inputs) shared_by_ = parallel.group;
  std::deque<Parameter>& all = scope.set().all();
  for (int64_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    const size_t before = all.size();
    blocks_.emplace_back(scope_of(layer, scope, config), config, layer, parallel);
    std::vector<Parameter*>& own = parameters_.emplace_back();
    for (size_t i = before; i < all.size(); ++i) own.push_back(&all[i]);
  }
}

size_t BlockStack::unit_from(size_t i) const {
  if (recompute_.granularity != RecomputeConfig::Granularity::layers) return 0;
  const auto layers = static_cast<size_t>(recompute_.layers);
  if (recompute_.method == RecomputeConfig::Method::block) return i < layers ? 1 : 0;
  return std::min(layers, blocks_.size() - i);
}

Stream BlockStack::forward_block(size_t i, const Stream& x, const AttentionContext& context,
                                 KeyValueCache* cache) {
  Stream y = blocks_[i].forward(x, context, cache);
  if (observer_) {
    const int64_t layer = layers_.first + static_cast<int64_t>(i);
    observer_(fmt::format("decoder.layers.{}", layer), y.x_SBH, context.first_sample);
  }
  return y;
}

Stream BlockStack::forward(const at::Tensor& x_SBH, const AttentionContext& context,
                           std::vector<KeyValueCache>* caches) {
  Stream x{x_SBH};
  for (size_t i = 0; i < blocks_.size();) {
    const size_t unit = caches ? 0 : unit_from(i);
    if (unit > 0) {
      x = {recompute_unit(settled(x), context, {static_cast<int64_t>(i), static_cast<int64_t>(unit)})};
    } else {
      x = forward_block(i, x, context, caches ? &caches->at(i) : nullptr);
    }
    i += std::max<size_t>(unit, 1);
  }
  return x;
}

at::Tensor BlockStack::recompute_unit(const at::Tensor& x_SBH, const AttentionContext& context,
                                      const Range& unit) {
  RecomputeOptions options{.shared_by = shared_by_};
  for (int64_t i = unit.first; i < unit.first + unit.count; ++i) {
    options.parameters.insert(options.parameters.end(), parameters_[i].begin(), parameters_[i].end());
  }
  const Region layers = [this, context, unit](at::TensorList inputs) {
    Stream y{inputs[0]};
    for (int64_t i = unit.first; i < unit.first + unit.count; ++i) {
      y = forward_block(static_cast<size_t>(i), y, context, nullptr);
    }
    return settled(y);
  };
  return recompute(layers, {x_SBH}, options);
}

}  // namespace teratron
