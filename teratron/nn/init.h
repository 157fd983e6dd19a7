// Initial values that do not depend on the parallel layout.
#pragma once

#include <cstdint>

namespace teratron {

struct Parameter;

/// Initializes this rank's shard; padding rows become zero.
void initialize(Parameter& parameter, uint64_t seed);

}  // namespace teratron
