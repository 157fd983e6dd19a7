// LoRA adapters of a model: from settings to options, and what stays trained.
#pragma once

#include <optional>

#include "teratron/models/model_plan.h"

namespace teratron {

/// The adapters of --lora-rank; nullopt: none. UserError(config) for an unknown target.
std::optional<LoraOptions> lora_options(const Arguments& args, const ModelPlan& model);

/// Freezes all parameters but adapters and the heads that a finetuning adds.
void freeze_base(ParameterSet& parameters);

}  // namespace teratron
