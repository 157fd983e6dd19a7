// Consecutive transformer layers of a model, with activation recomputation.
#pragma once

#include <deque>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/models/transformer/block.h"
#include "teratron/nn/recompute.h"

namespace teratron {

class BlockStack {
 public:
  struct Range {
    int64_t first = 0;  // layers count from 0 through the whole model
    int64_t count = 0;
  };
  /// Parameters of layer i are named `scope`.i.
  BlockStack(const Scope& scope, const GPTConfig& config, const Range& layers,
             const TensorParallel& parallel);
  /// `caches`: one per layer, or null. With caches (generation) nothing is recomputed.
  Hidden forward(const at::Tensor& x_SBH, const AttentionContext& context,
                 std::vector<KeyValueCache>* caches);
  /// See Model; recomputed layers call the hook again in backward.
  void set_activation_hook(const ActivationHook& hook) { hook_ = hook; }

 private:
  /// Number of layers from `i` on that are recomputed together; 0: layer `i` keeps its activations.
  size_t unit_size(size_t i) const;
  Hidden forward_block(size_t i, const Hidden& x, const AttentionContext& context, KeyValueCache* cache);
  at::Tensor recompute_unit(const at::Tensor& x_SBH, const AttentionContext& context, const Range& unit);

  Range layers_;
  ActivationHook hook_;
  RecomputeConfig recompute_;
  Group shared_by_;
  std::deque<Block> blocks_;
  std::vector<std::vector<Parameter*>> parameters_;  // by block
};

}  // namespace teratron
