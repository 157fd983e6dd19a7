// Whether all ranks of a job read the same data: machines may have other files under the same names.
#pragma once

#include <array>
#include <memory>

#include "teratron/comm/host/host_group.h"
#include "teratron/data/dataset.h"

namespace teratron {

/// Train, valid and test; null where there is none.
using DatasetsOfRun = std::array<std::shared_ptr<const Dataset>, 3>;

/// `mine`: what this rank reads, null on ranks that do not read. Compares the number of samples and the tokens of some of
/// each. UserError(config) on every rank, naming the ranks, where they differ. Collective.
void check_same_data(const DatasetsOfRun* mine, Peers& ranks);

}  // namespace teratron
