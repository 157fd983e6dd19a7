// What the plans of language models with transformer layers share.
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/models/transformer/config.h"

namespace teratron {

/// Hidden states that stages send to the next, with the rows of a column that all stages have.
Channel hidden_channel(std::string name, std::string column, const TransformerConfig& config);

/// The plan of a model over batches of this schema: its only tower, the channel "hidden" with the rows of
/// sequence_index, its vocabulary and its positions. `build`, `operators`, `inference` and `summary` are left
/// to the model.
ModelPlan language_model_plan(const LanguageModelConfig& config, std::string tower, const BatchSchema& batch);

}  // namespace teratron
