// teratron pretrain gpt FLAGS...
#pragma once

#include <functional>
#include <span>
#include <string>

#include "teratron/base/error.h"
#include "teratron/comm/communicator.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/registry.h"

namespace teratron {

/// `registry` is what a program built on the library brings along; `args` come after the word "pretrain". Returns the exit code; throws UserError and Fault.
int pretrain_command(std::span<const std::string> args, const Registry& registry);

/// What a rank of a job does with the settings on which all have agreed.
using RankWork = std::function<ExitCode(const ParsedArguments&, World&, const StopSignals&)>;
/// Joins the job that the environment describes (a launcher's, or one rank alone) and runs `work` on this process's
/// ranks. `args` are the flags of a pretraining.
int run_job(std::span<const std::string> args, const Registry& registry, const RankWork& work);

}  // namespace teratron
