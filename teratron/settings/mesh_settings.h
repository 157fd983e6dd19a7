// The mesh from the settings of a run.
#pragma once

#include "teratron/comm/mesh/rank_grid.h"
#include "teratron/settings/arguments.h"

namespace teratron {

MeshOptions mesh_options(const Arguments& args);

}  // namespace teratron
