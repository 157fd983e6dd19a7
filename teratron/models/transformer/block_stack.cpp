#include "teratron/models/transformer/block_stack.h"

#include <algorithm>

#include <fmt/format.h>

namespace teratron {

namespace {

Scope scope_of(int64_t layer, const Scope& layers, const GPTConfig& config) {
  const Scope scope = layers / std::to_string(layer);
  const int64_t after = config.layers - 1 - layer;
  return layer < config.bf16_layers_at_start || after < config.bf16_layers_at_end ? scope : scope.with_fp8();
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

size_t BlockStack::unit_size(size_t i) const {
  if (recompute_.granularity != RecomputeConfig::Granularity::layers) return 0;
  const auto layers = static_cast<size_t>(recompute_.layers);
  if (recompute_.method == RecomputeConfig::Method::block) return i < layers ? 1 : 0;
  return std::min(layers, blocks_.size() - i);
}

Hidden BlockStack::forward_block(size_t i, const Hidden& x, const AttentionContext& context,
                                 KeyValueCache* cache) {
  Hidden y = blocks_[i].forward(x, context, cache);
  if (hook_) {
    const int64_t layer = layers_.first + static_cast<int64_t>(i);
    hook_(fmt::format("decoder.layers.{}", layer), y.x_SBH, context.sample_ids_B);
  }
  return y;
}

Hidden BlockStack::forward(const at::Tensor& x_SBH, const AttentionContext& context,
                           std::vector<KeyValueCache>* caches) {
  Hidden x{x_SBH};
  for (size_t i = 0; i < blocks_.size();) {
    const size_t unit = caches ? 0 : unit_size(i);
    if (unit > 0) {
      x = {
          recompute_unit(apply_bias_grad(x), context, {static_cast<int64_t>(i), static_cast<int64_t>(unit)})};
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
  const RecomputeFunction layers = [this, context, unit](at::TensorList inputs) {
    Hidden y{inputs[0]};
    for (int64_t i = unit.first; i < unit.first + unit.count; ++i) {
      y = forward_block(static_cast<size_t>(i), y, context, nullptr);
    }
    return apply_bias_grad(y);
  };
  return recompute(layers, {x_SBH}, options);
}

}  // namespace teratron
