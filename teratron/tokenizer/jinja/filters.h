// Filters (value | name) and tests (value is name).
#pragma once

#include <string_view>

#include "teratron/tokenizer/jinja/methods.h"

namespace teratron::jinja {

/// An error for an unknown name.
Value apply_filter(Workspace& workspace, std::string_view name, const Value& value, Arguments arguments);
bool apply_test(Workspace& workspace, std::string_view name, const Value& value, Arguments arguments);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

std::span<const NamedOperation> value_filters();
std::span<const NamedOperation> list_filters();
std::span<const NamedOperation> choice_filters();

/// The value at "a.b.0", or of an integer.
Value attribute_path(Workspace& workspace, const Value& value, const Value& path);
/// A text in lower case, for comparisons that ignore case; other values as they are.
Value without_case(Workspace& workspace, const Value& value);

}  // namespace teratron::jinja
