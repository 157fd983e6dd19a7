// Conditions on settings, for the tables of rules and of ignored flags.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "teratron/settings/arguments.h"

namespace teratron {

/// A condition that holds: the setting, and the condition as a flag with its value.
struct HeldCondition {
  std::string_view name;
  std::string flag;
};

/// The first of the conditions in `text` that holds. Conditions are written as flags and separated by " or ":
/// "--fp16", "--no-fp8-wgrad", "--optimizer sgd", "--fp8 e4m3|hybrid", "--top-k > 1", "data_parallel_size 1".
/// A flag alone holds if the setting is true, non-zero, or set by the user or as a default of --mock-data.
std::optional<HeldCondition> find_held(std::string_view text, const Arguments& args, const Sources& sources);

}  // namespace teratron
