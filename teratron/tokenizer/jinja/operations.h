// Operators, attributes, items and calls of values.
#pragma once

#include <string_view>

#include "teratron/tokenizer/jinja/values/value.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

/// + - * / // % **
Value binary_operation(Workspace& workspace, std::string_view name, const Value& a, const Value& b);
/// + -
Value signed_value(Workspace& workspace, std::string_view sign, const Value& value);
/// == != < <= > >= in, not in
bool comparison(Workspace& workspace, std::string_view name, const Value& a, const Value& b);

/// value.name: a method, a member or an attribute of a loop; Undefined if there is none.
Value attribute_of(Workspace& workspace, const Value& value, std::string_view name);
/// value[index]
Value item_of(Workspace& workspace, const Value& value, const Value& index);

/// start:stop:step, of which each may be None.
struct Slice {
  Value start, stop, step;
};
Value slice_of(Workspace& workspace, const Value& value, const Slice& slice);

Value call_value(Workspace& workspace, const Value& callee, const Arguments& arguments);
/// The error for an undefined value; does nothing for others.
void require_defined(Workspace& workspace, const Value& value);

}  // namespace teratron::jinja
