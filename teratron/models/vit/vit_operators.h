// Costs of a vision transformer's pipeline stage, and what it takes outside training.
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/models/vit/vit_config.h"

namespace teratron {

OperatorsOf vit_operators(const VitConfig& config);
/// pixel_values f32 [N, channels, height, width]; logits [N, classes].
Inference vit_inference(const VitConfig& config);

}  // namespace teratron
