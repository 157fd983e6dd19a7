// JSON objects that keep the order of their members, which texts made of them show.
#pragma once

#include <string_view>

#include "teratron/base/json.h"

namespace teratron {

/// As parse_json(). Objects have at most 10000 members, because each is looked for in turn.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonOptions& options);

}  // namespace teratron
