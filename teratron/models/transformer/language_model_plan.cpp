#include "teratron/models/transformer/language_model_plan.h"

namespace teratron {

Channel hidden_channel(std::string name, std::string column, const TransformerConfig& config) {
  return {.name = std::move(name),
          .shape = sequence_shape(std::move(column), config.hidden),
          .dtype = config.fp32_residual ? std::optional(at::kFloat) : std::nullopt};
}

ModelPlan language_model_plan(const LanguageModelConfig& config, std::string tower,
                              const BatchSchema& batch) {
  return {.towers = {{std::move(tower), config.layers}},
          .batch = batch,
          .channels = {hidden_channel("hidden", "sequence_index", config)},
          .vocabulary = config.vocabulary,
          .padded_vocabulary = config.padded_vocabulary,
          .max_positions = config.max_positions};
}

}  // namespace teratron
