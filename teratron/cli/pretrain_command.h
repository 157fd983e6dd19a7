// teratron pretrain gpt FLAGS...
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "pretrain". Returns the exit code; throws UserError and Fault.
int pretrain_command(std::span<const std::string> args);

}  // namespace teratron
