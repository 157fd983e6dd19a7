// Templates as statements.
#pragma once

#include <string>
#include <string_view>

#include "teratron/tokenizer/jinja/syntax/syntax.h"

namespace teratron::jinja {

/// UserError(data) with "name:line" for what is not a template.
Body parse_template(std::string_view source, const std::string& name);

}  // namespace teratron::jinja
