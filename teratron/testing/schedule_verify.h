// Verification of pipeline schedules by simulation.
#pragma once

#include "teratron/pipeline/schedule.h"

namespace teratron {

/// Problems of the schedules of all stages: missing or repeated computations, messages that do not match or
/// arrive out of order, deadlocks. Empty: none.
std::vector<std::string> verify(std::span<const Actions> stages);
/// Verifies all schedules of a shape; also checks that their activations equal the formula.
std::vector<std::string> verify(const ScheduleShape& shape);

}  // namespace teratron
