// teratron plan [gpt] [--world-size N] [--show-schedule] FLAGS...
#pragma once

#include <span>
#include <string>

namespace teratron {

/// Checks a command line of `pretrain` for N ranks without running it, on any machine, and prints what would happen:
///
///   settings    those that were given or derived, each with its source
///   ranks       a picture of the mesh
///   stages      layers, parameters and memory of a rank of each pipeline stage
///   schedule    with --show-schedule: when each stage computes what (which needs no model: sizes of the pipeline are
///               enough)
///
/// `args` come after the word "plan". N defaults to the ranks of one replica of the model. Returns 0; throws UserError
/// with all problems of the command line, as pretrain would.
int plan_command(std::span<const std::string> args);

}  // namespace teratron
