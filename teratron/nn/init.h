// Initial values that do not depend on the layout.
#pragma once

#include <cstdint>

namespace teratron {

struct Parameter;

/// Writes the initial value of this rank's part. Rows of padding get zeros.
void initialize(Parameter& parameter, uint64_t seed);

}  // namespace teratron
