// teratron preprocess: JSON lines to indexed datasets, with the flags of Megatron-LM's preprocess_data.py.
#pragma once

#include <span>
#include <string>

namespace teratron {

/// `args` come after the word "preprocess". Results go to stdout, progress to stderr; returns the exit code.
/// Throws UserError and Fault.
int preprocess_command(std::span<const std::string> args);

}  // namespace teratron
