#include "teratron/models/transformer/layer_stack_cost.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/cost/dropout_cost.h"
#include "teratron/nn/cost/norm_cost.h"

namespace teratron {

namespace {

// Layers of one stack.
struct Stack {
  const std::string& prefix;
  const TransformerConfig& config;
  const RankSizes& sizes;
  const LayerOperators& operators_of;
};

std::vector<Operator> operators_of_layer(const Stack& stack, int64_t layer) {
  RankBatch batch = stack.sizes.batch;
  batch.fp8 = batch.fp8 && !stays_in_bf16(stack.config, layer);
  std::vector<Operator> operators =
      stack.operators_of(fmt::format("{}.{}", stack.prefix, layer), batch, layer);
  for (Operator& op : operators) {
    if (op.recompute_unit >= 0) op.recompute_unit = layer;
  }
  return operators;
}

// The saved input of a unit, which the first norm does not save again unless ranks share it.
Operator unit_input(const Stack& stack, int64_t layer, Operator& first_norm) {
  const RankSizes& sizes = stack.sizes;
  const bool shared = stack.config.recompute.distribute_inputs && sizes.shards > 1.0;
  if (!shared) first_norm.add_saved(-sizes.residual_stream);
  return {.name = fmt::format("{}.{}.input", stack.prefix, layer),
          .saved = sizes.residual_stream / (shared ? sizes.shards : 1.0)};
}

std::vector<Operator> operators_of_unit(const Stack& stack, const LayerUnit& unit) {
  std::vector<Operator> all;
  for (int64_t layer = unit.layers.first; layer < unit.layers.first + unit.layers.count; ++layer)
    append(all, operators_of_layer(stack, layer));
  if (!unit.recomputed) return all;
  for (Operator& op : all) {
    op.recompute_unit = unit.layers.first;
    op.backward_peak += stack.sizes.residual_stream;  // the unit's output, computed again
  }
  all.insert(all.begin(), unit_input(stack, unit.layers.first, all.front()));
  return all;
}

// `held`: bytes that the step saves and something else holds.
void set_offload(std::span<Operator> operators, const OffloadStep& step, double min_bytes, double held) {
  for (Operator& op : operators) {
    op.offload = step;
    op.kept = op.saved < min_bytes ? op.saved : 0.0;
    const double input = std::min(held, op.saved);  // the first operators'
    op.kept = std::max(op.kept, input);
    held -= input;
  }
}

// What all layers share: the memory of cross attention, with its gradient, and row ids.
std::vector<Operator> shared_operators(const std::string& tower, const TransformerConfig& config,
                                       const RankSizes& sizes) {
  std::vector<Operator> all;
  if (config.cross_attention) {
    const double memory = sizes.of_memory().hidden;
    all.push_back(
        {.name = tower + ".memory", .saved = memory, .forward_peak = memory, .backward_peak = 2.0 * memory});
  }
  const int64_t score_heads = config.attention_dropout > 0.0 ? config.heads : 0;
  all.push_back(dropout_rows_operator(tower + ".layers.dropout_rows", score_heads, sizes));
  return all;
}

}  // namespace

LayerOperators transformer_operators(const TransformerConfig& config) {
  return [=](const std::string& name, const RankBatch& batch, int64_t layer) {
    return layer_operators(name, config, batch, branches_of(config, layer));
  };
}

std::vector<Operator> stack_operators(const std::string& tower, const TransformerConfig& config,
                                      const RankBatch& batch, const StackPart& part) {
  const RankSizes sizes(hidden_states(config), batch);
  const LayerOperators operators_of = part.operators ? part.operators : transformer_operators(config);
  const std::string prefix = tower + ".layers";
  const Stack stack{prefix, config, sizes, operators_of};
  const std::vector<LayerUnit> units = layer_units(config.recompute, part.layers.count);
  const OffloadSchedule schedule = offload_schedule(units, config.offload.layers);
  std::vector<Operator> all;
  if (!units.empty()) all = shared_operators(tower, config, sizes);
  for (int64_t step = 0; LayerUnit unit : units) {
    unit.layers.first += part.layers.first;
    std::vector<Operator> operators = operators_of_unit(stack, unit);
    if (schedule.offloaded > 0) {
      const double held = step == 0 && part.received ? sizes.residual_stream : 0.0;
      set_offload(operators, {schedule, step}, as_real(config.offload.min_bytes), held);
    }
    append(all, std::move(operators));
    ++step;
  }
  if (part.ends) all.push_back(norm_operator(tower + "." + config.final_norm, config.norm, sizes));
  return all;
}

}  // namespace teratron
