// map, select, reject, selectattr, rejectattr.
#include <vector>

#include "teratron/tokenizer/jinja/filters.h"

namespace teratron::jinja {

namespace {
namespace choice_filter {

// Without the first `count` positional arguments.
Arguments behind(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional = arguments.positional.subspan(count);
  return rest;
}

// Jinja's filters of choice give nothing for none, undefined, 0 or false, which elements() refuses.
std::span<const Value> chosen_from(Workspace& workspace, const Value& value) {
  return is_true(value) ? elements(workspace, value) : std::span<const Value>();
}

Value map(Workspace& workspace, const Value& value, const Arguments& arguments) {
  std::vector<Value> mapped;
  if (!arguments.positional.empty()) {
    const std::string_view filter = text_argument(workspace, arguments.positional[0]);
    for (const Value& each : chosen_from(workspace, value))
      mapped.push_back(apply_filter(workspace, filter, each, behind(arguments, 1)));
    return workspace.list(mapped, ListKind::generator);
  }
  std::optional<Value> attribute, otherwise;
  for (const auto& [name, given] : arguments.named) {
    if (name == "attribute") attribute = given;
    if (name == "default") otherwise = given;
  }
  if (!attribute) throw workspace.error("map needs a filter or an attribute");
  for (const Value& each : chosen_from(workspace, value)) {
    const Value found = attribute_path(workspace, each, *attribute);
    mapped.push_back(found.is_undefined() && otherwise ? *otherwise : found);
  }
  return workspace.list(mapped, ListKind::generator);
}

template <bool of_attribute, bool wanted>
Value choose(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const size_t before = of_attribute ? 1 : 0;
  if (arguments.positional.size() < before)
    throw workspace.error(fmt::format("{} needs an attribute", arguments.function));
  const bool has_test = arguments.positional.size() > before;
  std::vector<Value> chosen;
  for (const Value& each : chosen_from(workspace, value)) {
    const Value tested = of_attribute ? attribute_path(workspace, each, arguments.positional[0]) : each;
    const bool passes = has_test
                            ? apply_test(workspace, text_argument(workspace, arguments.positional[before]),
                                         tested, behind(arguments, before + 1))
                            : is_true(tested);
    if (passes == wanted) chosen.push_back(each);
  }
  return workspace.list(chosen, ListKind::generator);
}

constexpr NamedOperation filters[] = {
    {"map", map},
    {"select", choose<false, true>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<true, false>},
};

}  // namespace choice_filter
}  // namespace

std::span<const NamedOperation> choice_filters() {
  return choice_filter::filters;
}

}  // namespace teratron::jinja
