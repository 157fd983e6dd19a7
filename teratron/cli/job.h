// What the commands that run on all ranks of a job share.
#pragma once

#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/world.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// Time-outs as the flags say, and this process's GPU.
WorldOptions world_options(const Arguments& args, const Launch& launch);

/// Runs `body` with all ranks of the job as the tensor-parallel ranks of one model. UserError(config) if
/// --tensor-model-parallel-size was given and is another number.
void run_tensor_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body);

}  // namespace teratron
