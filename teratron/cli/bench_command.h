#pragma once

#include <span>
#include <string>

namespace teratron {

/// teratron bench --shape NAME [--warm-up-seconds S] [--steps N] [--profiled-steps N] [--json FILE] FLAGS...
int bench_command(std::span<const std::string> args);

}  // namespace teratron
