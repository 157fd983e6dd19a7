// Costs of consecutive layers (layer_stack.h), with recomputation and offloading.
#pragma once

#include <functional>

#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

/// The operators of a layer, which counts from 0 through the whole stack, named `name`.*
/// ("decoder.layers.3"). A unit of recomputation within the layer is 0. The batch of a layer that stays in
/// bf16 is without FP8.
using LayerOperators =
    std::function<std::vector<Operator>(const std::string& name, const RankBatch& batch, int64_t layer)>;

/// Operators of the layers that transformer_layers() creates.
LayerOperators transformer_operators(const TransformerConfig& config);

/// The layers of a stack on a stage.
struct StackPart {
  LayerRange layers;
  bool received = false;               // their input is a message, which the pipeline holds for its gradient
  LayerOperators operators = nullptr;  // null: transformer layers
  bool ends = false;                   // the final norm follows
};

/// The layers in order, named `tower`.layers.3.*, after what they share: the memory of cross attention, row
/// ids of dropout. Where the stack ends, its final norm follows. As LayerStack, it uses the number
/// of layers of `config`, which of them stay in bf16, and what is recomputed and offloaded.
std::vector<Operator> stack_operators(const std::string& tower, const TransformerConfig& config,
                                      const RankBatch& batch, const StackPart& part);

}  // namespace teratron
