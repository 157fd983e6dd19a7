// The settings of the pipeline as its layout and schedule take them; no torch, so that settings can be checked
// and planned with.
#pragma once

#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/pipeline/schedule.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// num_layers must be set.
LayoutOptions layout_options(const Arguments& args);
/// The schedule of a step with this many micro-batches.
ScheduleShape schedule_shape(const Arguments& args, const PipelineLayout& layout, int64_t microbatches);

}  // namespace teratron
