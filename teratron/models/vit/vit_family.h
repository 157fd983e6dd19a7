// The family of image classifiers.
#pragma once

#include "teratron/models/family.h"
#include "teratron/models/vit/vit_config.h"

namespace teratron {

Family vit_family();

/// pixel_values [channels, height, width] of the first stage, sequence_index of an image's rows, labels of
/// the last.
BatchSchema vit_schema(const VitConfig& config);
/// The plan over batches of vit_schema(); its loss is "loss".
ModelPlan vit_plan(const VitConfig& config);

}  // namespace teratron
