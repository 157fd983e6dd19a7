#include "teratron/tokenizer/jinja/filters.h"

#include <charconv>

#include "teratron/tokenizer/jinja/operations.h"
#include "teratron/tokenizer/jinja/values/python_text.h"

namespace teratron::jinja {

namespace {

const NamedOperation* filter_of(std::string_view name) {
  for (const auto all : {value_filters(), list_filters(), choice_filters()}) {
    if (const NamedOperation* const found = find_operation(all, name)) return found;
  }
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) {
  return filter_of(name) != nullptr;
}

Value apply_filter(Workspace& workspace, std::string_view name, const Value& value, Arguments arguments) {
  const NamedOperation* const filter = filter_of(name);
  if (filter == nullptr)
    throw workspace.error(fmt::format("there is no filter '{}' here", printable(name, 40)));
  arguments.function = name;
  return filter->run(workspace, value, arguments);
}

Value attribute_path(Workspace& workspace, const Value& value, const Value& path) {
  if (!path.is_text()) return item_of(workspace, value, path);
  Value found = value;
  std::string_view rest = path.text();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool numbered = !name.empty() && error == std::errc() && end == name.data() + name.size();
    found = item_of(workspace, found, numbered ? Value(index) : Value(name));
    if (dot == rest.size()) return found;
    rest.remove_prefix(dot + 1);
  }
}

Value without_case(Workspace& workspace, const Value& value) {
  return value.is_text() ? Value(workspace.keep(lower_text(value.text()))) : value;
}

}  // namespace teratron::jinja
