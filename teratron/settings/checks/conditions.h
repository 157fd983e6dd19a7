// Conditions on settings, for the tables of rules and of ignored flags.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/settings/arguments.h"

namespace teratron {

/// A condition that holds: the setting, and the condition as a flag with its value.
struct HeldCondition {
  std::string_view name;
  std::string flag;
};

/// The conditions in `text` that hold. They are written as flags and separated by " or ": "--fp16",
/// "--no-fp8-wgrad", "--optimizer sgd", "--fp8 e4m3|hybrid", "--top-k > 1", "data_parallel_size 1".
/// A flag alone holds if the setting is true, non-zero, or set by the user or as a default of --mock-data.
/// One element of a list is enough.
std::vector<HeldCondition> all_held(std::string_view text, const Arguments& args, const Sources& sources);
/// The first of them.
std::optional<HeldCondition> find_held(std::string_view text, const Arguments& args, const Sources& sources);
/// Whether all alternatives hold that `text` joins with " and "; "without " before one negates it. True if
/// `text` is empty.
bool applies(std::string_view text, const Arguments& args, const Sources& sources);

}  // namespace teratron
