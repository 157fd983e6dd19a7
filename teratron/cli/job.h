// What the commands that run on all ranks of a job share.
#pragma once

#include "teratron/comm/world.h"
#include "teratron/train/arguments.h"

namespace teratron {

/// Time-outs as the flags say, and this process's GPU.
WorldOptions world_options(const Arguments& args, const Launch& launch);

}  // namespace teratron
