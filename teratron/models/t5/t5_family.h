// T5: encoders and decoders, trained to restore spans of text.
#pragma once

#include "teratron/models/family.h"
#include "teratron/models/t5/data/t5_builder.h"
#include "teratron/models/t5/t5_config.h"

namespace teratron {

Family t5_family();

/// The plan of a T5 over batches of this schema (t5_schema()).
ModelPlan t5_plan(const T5Config& config, const BatchSchema& batch);
/// What the data flags select.
T5DataOptions t5_data_options(const DataRequest& request);

}  // namespace teratron
