// Flags of hybrid models in other families.
#pragma once

#include <vector>

#include "teratron/settings/arguments.h"

namespace teratron {

/// For the check of a family whose layers are all of one kind.
void refuse_hybrids(const Arguments& args, std::vector<Problem>& problems);

}  // namespace teratron
