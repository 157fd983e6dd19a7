// Texts with places for values: "%s" % value and "{}".format(value).
#pragma once

#include <string>
#include <string_view>

#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

/// Python's text % values, where a tuple is several; %s, %r, %d, %i, %x, %f, %e, %g with width and precision.
std::string percent_format(Workspace& workspace, std::string_view text, const Value& values);
/// str.format() with {}, {0} and {name}.
std::string brace_format(Workspace& workspace, std::string_view text, const Arguments& arguments);

}  // namespace teratron::jinja
