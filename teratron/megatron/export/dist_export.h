// Checkpoints of format `torch_dist`, in the form of core 0.12 (common.pt), which later releases read, too.
#pragma once

#include <filesystem>

#include "teratron/megatron/export/export_plan.h"

namespace teratron {

/// Writes the folder of the iteration: weights, Adam's state by weight, arguments and counters. Tensors are
/// cut into chunks as tensor ranks have them.
void write_dist_checkpoint(const ExportPlan& plan, const std::filesystem::path& folder);

}  // namespace teratron
