// JSON to values and back, spelled as Python's json.dumps() does.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

Value value_of_json(Workspace& workspace, const nlohmann::ordered_json& json);

struct JsonStyle {
  bool ascii = false;
  bool sorted = false;
  bool several_lines = false;
  std::string indent = {};  // of one level
  std::string item_separator = ", ", key_separator = ": ";
};
/// The arguments of tojson: ensure_ascii, indent, separators, sort_keys.
JsonStyle json_style(Workspace& workspace, const Arguments& arguments);
std::string json_text(Workspace& workspace, const Value& value, const JsonStyle& style);

}  // namespace teratron::jinja
