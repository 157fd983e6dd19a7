// Methods of texts, lists and dicts.
#pragma once

#include <optional>
#include <string_view>

#include "teratron/tokenizer/jinja/values/value.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

/// What a filter, a test or a method does with a value.
using Operation = Value (*)(Workspace& workspace, const Value& self, const Arguments& arguments);
struct NamedOperation {
  std::string_view name;
  Operation run;
};
/// nullptr: there is none of this name.
const NamedOperation* find_operation(std::span<const NamedOperation> all, std::string_view name);

std::span<const NamedOperation> text_methods();

/// The method as a function; nullopt if the value has none of this name. Methods that change a list or dict
/// are errors when they are called, as in transformers' sandbox.
std::optional<Value> find_method(Workspace& workspace, const Value& self, std::string_view name);

}  // namespace teratron::jinja
