// Check that all ranks of a job read the same data: files of the same name may differ between machines.
#pragma once

#include <array>
#include <memory>

#include "teratron/comm/host/host_group.h"
#include "teratron/data/dataset.h"

namespace teratron {

/// Train, valid and test; null where there is none.
using DatasetsOfRun = std::array<std::shared_ptr<const Dataset>, 3>;

/// `mine`: this rank's datasets, null on ranks that do not read. Compares sizes and the tokens of some
/// samples. UserError(config) on every rank, naming the ranks, if they differ. Collective.
void check_same_data(const DatasetsOfRun* mine, HostGroup& ranks);

}  // namespace teratron
