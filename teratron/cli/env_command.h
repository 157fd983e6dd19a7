// teratron env
#pragma once

#include <span>
#include <string>

namespace teratron {

/// Prints versions, devices and how the program was built. `args` come after the word "env".
int env_command(std::span<const std::string> args);

}  // namespace teratron
