// Costs of a T5's pipeline stage.
#pragma once

#include "teratron/models/model_plan.h"
#include "teratron/models/t5/t5_config.h"

namespace teratron {

/// Over batches of this schema, which says how long the decoder's rows are and whether the encoder's are
/// padded.
OperatorsOf t5_operators(const T5Config& config, const BatchSchema& batch);

}  // namespace teratron
