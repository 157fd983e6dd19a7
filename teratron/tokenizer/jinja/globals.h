// The functions of all templates: range, dict, namespace, raise_exception, strftime_now.
#pragma once

#include <optional>
#include <string_view>

#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

std::optional<Value> find_global(std::string_view name);

}  // namespace teratron::jinja
