// Flags whose values other users of the machine must not see (FieldTraits::secret).
#pragma once

#include <string>
#include <vector>

#include "teratron/base/config/config.h"

namespace teratron {

/// The environment variable that can hold the value of a secret setting: TERATRON_API_KEY.
std::string secret_variable(const Field& field);

/// The arguments of the program. In `argv`, which `ps` shows, values of secret flags are overwritten. Ranks
/// of `teratron launch` find them in their environment.
std::vector<std::string> take_arguments(int argc, char** argv);

}  // namespace teratron
