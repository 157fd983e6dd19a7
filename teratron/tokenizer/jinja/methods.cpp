#include "teratron/tokenizer/jinja/methods.h"

#include <algorithm>
#include <vector>

namespace teratron::jinja {

const NamedOperation* find_operation(std::span<const NamedOperation> all, std::string_view name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

namespace {

Value pairs_of(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.as<const Dict*>()->members) {
    const Value pair[] = {key, value};
    pairs.push_back(workspace.list(pair, ListKind::tuple));
  }
  return workspace.list(pairs, ListKind::view);
}

Value keys_of(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.list(elements(workspace, self), ListKind::view);
}

Value values_of(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.as<const Dict*>()->members) values.push_back(value);
  return workspace.list(values, ListKind::view);
}

Value get_member(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"key", "default"});
  if (!given[0]) throw workspace.error("get() needs a key");
  const Value* const found = find_member(workspace, *self.as<const Dict*>(), *given[0]);
  return found != nullptr ? *found : given[1].value_or(None{});
}

Value itself(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return self;
}

Value refuse_change(Workspace& workspace, const Value& /*self*/, const Arguments& arguments) {
  throw workspace.error(
      fmt::format("{}() would change a value, which templates may not", arguments.function));
}

Value index_of(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"value"});
  const auto items = elements(workspace, self);
  for (size_t i = 0; given[0] && i < items.size(); ++i) {
    if (equal(workspace, items[i], *given[0])) return i;
  }
  throw workspace.error("index() finds no such value in the list");
}

Value count_of(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"value"});
  int64_t count = 0;
  for (const Value& each : elements(workspace, self)) {
    if (given[0] && equal(workspace, each, *given[0])) ++count;
  }
  return count;
}

constexpr NamedOperation dict_methods[] = {
    {"items", pairs_of},       {"keys", keys_of},          {"values", values_of},
    {"get", get_member},       {"copy", itself},           {"clear", refuse_change},
    {"pop", refuse_change},    {"popitem", refuse_change}, {"setdefault", refuse_change},
    {"update", refuse_change},
};
constexpr NamedOperation list_methods[] = {
    {"index", index_of},        {"count", count_of},       {"copy", itself},
    {"append", refuse_change},  {"clear", refuse_change},  {"pop", refuse_change},
    {"reverse", refuse_change}, {"insert", refuse_change}, {"sort", refuse_change},
    {"extend", refuse_change},  {"remove", refuse_change},
};

Value call_method(Workspace& workspace, const Function& function, const Arguments& arguments) {
  return static_cast<const NamedOperation*>(function.data)->run(workspace, function.self, arguments);
}

}  // namespace

std::optional<Value> find_method(Workspace& workspace, const Value& self, std::string_view name) {
  std::span<const NamedOperation> all;
  if (self.is_text()) all = text_methods();
  if (self.is<const Dict*>()) all = dict_methods;
  if (self.is<const List*>()) all = list_methods;
  const NamedOperation* const found = find_operation(all, name);
  if (found == nullptr) return std::nullopt;
  return static_cast<const Function*>(
      workspace.make(Function{.name = found->name, .call = call_method, .self = self, .data = found}));
}

}  // namespace teratron::jinja
