// Programs of Megatron-LM, Accelerate and transformers by the names of their files: what is typed after
// `python` in their documentation runs here, in whatever folder the name says.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace teratron {

/// The command of ours that a published program is: {"tools/merge_datasets.py", "--input", ...} becomes
/// {"merge", "--input", ...}, with the flags that are spelled otherwise here. Prints one notice. Nullopt if
/// args[0] names no such program. UserError(config) for a value that the program would refuse.
std::optional<std::vector<std::string>> command_of_program(std::span<const std::string> args);

}  // namespace teratron
