// What simdjson rejects, in words for users.
#pragma once

#include <simdjson.h>

namespace teratron {

/// "a number is malformed", ... to follow the name of the file or line.
const char* json_problem(simdjson::error_code error);

}  // namespace teratron
