// Some of a model's layers one after the other, with their activations kept or recomputed.
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
  /// `scope` holds the layers by number.
  BlockStack(const Scope& scope, const GPTConfig& config, const Range& layers,
             const TensorParallel& parallel);
  /// `caches`: one per layer, or null. Nothing is recomputed when text is generated.
  Stream forward(const at::Tensor& x_SBH, const AttentionContext& context,
                 std::vector<KeyValueCache>* caches);
  /// Model::observe(); layers that are recomputed tell once more in backward.
  void observe(const PartObserver& observer) { observer_ = observer; }

 private:
  /// Layers from `i` on that are recomputed together; 0: layer `i` keeps its activations.
  size_t unit_from(size_t i) const;
  Stream forward_block(size_t i, const Stream& x, const AttentionContext& context, KeyValueCache* cache);
  at::Tensor recompute_unit(const at::Tensor& x_SBH, const AttentionContext& context, const Range& unit);

  Range layers_;
  PartObserver observer_;
  RecomputeConfig recompute_;
  Group shared_by_;
  std::deque<Block> blocks_;
  std::vector<std::vector<Parameter*>> parameters_;  // of each block
};

}  // namespace teratron
