// Language models that read images (LLaVA).
#pragma once

#include "teratron/models/family.h"
#include "teratron/models/vlm/data/vlm_schema.h"
#include "teratron/models/vlm/vlm_config.h"

namespace teratron {

Family vlm_family();

/// The plan of a model over batches of this schema (vlm_schema()).
ModelPlan vlm_plan(const VlmConfig& config, const BatchSchema& batch);

}  // namespace teratron
