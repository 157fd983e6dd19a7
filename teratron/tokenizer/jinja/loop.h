// The variable `loop` of for statements.
#pragma once

#include <optional>
#include <string_view>

#include "teratron/tokenizer/jinja/values/value.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

/// index, index0, revindex, revindex0, first, last, length, depth, depth0, previtem, nextitem, cycle and
/// changed; nullopt for other names.
std::optional<Value> loop_attribute(Workspace& workspace, const Loop& loop, std::string_view name);

}  // namespace teratron::jinja
