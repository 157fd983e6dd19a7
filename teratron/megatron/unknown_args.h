// The arguments of a Megatron-LM checkpoint that no release of Megatron-LM has.
#pragma once

#include <string>
#include <vector>

#include "teratron/pickle/value.h"

namespace teratron {

/// Names of the saved arguments with a value (see has_value()) that are neither flags of Megatron-LM up to
/// the version of arguments.def nor what it adds to them at run time: those of forks and of later versions.
/// `args` is a dict; nullptr: none are saved.
std::vector<std::string> unknown_arguments(const PickleValue* args);

}  // namespace teratron
