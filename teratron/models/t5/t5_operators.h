// The operators of a T5's pipeline stage (models/operators.h).
#pragma once

#include "teratron/data/batch.h"
#include "teratron/models/operators.h"
#include "teratron/models/t5/t5_config.h"

namespace teratron {

/// Over batches of this schema, which says how long the decoder's rows are and whether the encoder's are
/// padded.
OperatorsOf t5_operators(const T5Config& config, const BatchSchema& batch);

}  // namespace teratron
