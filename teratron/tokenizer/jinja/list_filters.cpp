// Filters of lists, texts as lists of characters, and dicts.
#include <algorithm>
#include <vector>

#include "teratron/tokenizer/jinja/filters.h"
#include "teratron/tokenizer/jinja/operations.h"
#include "teratron/tokenizer/jinja/values/python_text.h"

namespace teratron::jinja {

namespace {
namespace list_filter {

Value first(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const auto items = elements(workspace, value);
  return items.empty() ? Value(Undefined{"there is no first item, the list is empty"}) : items.front();
}

Value last(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const auto items = elements(workspace, value);
  return items.empty() ? Value(Undefined{"there is no last item, the list is empty"}) : items.back();
}

Value size_of(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return length(workspace, value);
}

Value as_list(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.list(elements(workspace, value));
}

Value join(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"d", "attribute"});
  const std::string_view between = given[0] ? to_text(workspace, *given[0]) : "";
  TextBuilder out(workspace);
  std::string_view separator;
  for (const Value& each : elements(workspace, value)) {
    const bool of_attribute = given[1] && !given[1]->is_none();
    out << separator << to_text(workspace, of_attribute ? attribute_path(workspace, each, *given[1]) : each);
    separator = between;
  }
  return out.keep();
}

Value reversed(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const auto items = elements(workspace, value);
  std::vector<Value> turned(items.rbegin(), items.rend());
  if (!value.is_text()) return workspace.list(turned, ListKind::generator);
  TextBuilder out(workspace);
  for (const Value& each : turned) out << each.text();
  return out.keep();
}

// Keys of the comparisons of sort, unique, min, max.
struct KeyOptions {
  bool case_sensitive = false;
  std::optional<Value> attribute = {};
};

Value key_of(Workspace& workspace, const Value& value, const KeyOptions& options) {
  const bool of_attribute = options.attribute && !options.attribute->is_none();
  const Value key = of_attribute ? attribute_path(workspace, value, *options.attribute) : value;
  return options.case_sensitive ? key : without_case(workspace, key);
}

KeyOptions key_options(const std::optional<Value>& case_sensitive, const std::optional<Value>& attribute) {
  return {.case_sensitive = case_sensitive && is_true(*case_sensitive), .attribute = attribute};
}

using Keyed = std::pair<Value, Value>;  // a key and a value

std::vector<Keyed> keyed(Workspace& workspace, std::span<const Value> items, const KeyOptions& options) {
  std::vector<Keyed> all;
  workspace.work(items.size() * sizeof(Keyed));
  for (const Value& each : items) all.emplace_back(key_of(workspace, each, options), each);
  return all;
}

Value sorted_list(Workspace& workspace, std::vector<Keyed> all, bool reverse) {
  const auto before = [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(workspace, b.first, a.first) < 0 : compare(workspace, a.first, b.first) < 0;
  };
  std::stable_sort(all.begin(), all.end(), before);
  std::vector<Value> values;
  for (const Keyed& each : all) values.push_back(each.second);
  return workspace.list(values);
}

Value sort(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"reverse", "case_sensitive", "attribute"});
  if (given[2] && given[2]->is_text() && given[2]->text().find(',') != std::string_view::npos)
    throw workspace.error("sort by several attributes is not supported", "Sort by one after the other");
  return sorted_list(workspace, keyed(workspace, elements(workspace, value), key_options(given[1], given[2])),
                     given[0] && is_true(*given[0]));
}

Value sorted_dict(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"case_sensitive", "by", "reverse"});
  const auto* const dict = value.get_if<const Dict*>();
  if (dict == nullptr)
    throw workspace.error(fmt::format("dictsort sorts a dict, not '{}'", type_name(value)));
  const std::string_view by = given[1] ? text_argument(workspace, given[1]) : "key";
  if (by != "key" && by != "value") throw workspace.error("dictsort sorts by 'key' or 'value'");
  const bool case_sensitive = given[0] && is_true(*given[0]);
  std::vector<Keyed> all;
  for (const auto& [key, member] : (*dict)->members) {
    const Value pair[] = {key, member};
    const Value& by_value = by == "key" ? key : member;
    all.emplace_back(case_sensitive ? by_value : without_case(workspace, by_value),
                     workspace.list(pair, ListKind::tuple));
  }
  return sorted_list(workspace, std::move(all), given[2] && is_true(*given[2]));
}

Value unique(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"case_sensitive", "attribute"});
  std::vector<Keyed> kept;
  std::vector<Value> values;
  for (Keyed& each : keyed(workspace, elements(workspace, value), key_options(given[0], given[1]))) {
    const bool is_new = std::none_of(kept.begin(), kept.end(), [&](const Keyed& other) {
      return equal(workspace, other.first, each.first);
    });
    if (!is_new) continue;
    values.push_back(each.second);
    kept.push_back(std::move(each));
  }
  return workspace.list(values, ListKind::generator);
}

template <int sign>
Value extreme(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"case_sensitive", "attribute"});
  const std::vector<Keyed> all =
      keyed(workspace, elements(workspace, value), key_options(given[0], given[1]));
  if (all.empty()) return Undefined{"there is no such item, the list is empty"};
  const Keyed* best = &all.front();
  for (const Keyed& each : all) {
    if (compare(workspace, each.first, best->first) * sign > 0) best = &each;
  }
  return best->second;
}

Value sum(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"attribute", "start"});
  Value total = given[1].value_or(0);
  for (const Value& each : elements(workspace, value)) {
    const bool of_attribute = given[0] && !given[0]->is_none();
    total = binary_operation(workspace, "+", total,
                             of_attribute ? attribute_path(workspace, each, *given[0]) : each);
  }
  return total;
}

Value items(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  if (value.is_undefined()) return workspace.list({}, ListKind::generator);
  const auto method = value.is<const Dict*>() ? find_method(workspace, value, "items") : std::nullopt;
  if (!method) throw workspace.error(fmt::format("items are those of a dict, not of '{}'", type_name(value)));
  const Value pairs = call_value(workspace, *method, {});
  return workspace.list(elements(workspace, pairs), ListKind::generator);
}

Value batch(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"linecount", "fill_with"});
  const int64_t size = integer_argument(workspace, given[0], 0);
  if (size < 1) throw workspace.error("batch needs a size of at least 1");
  std::vector<Value> batches, current;
  for (const Value& each : elements(workspace, value)) {
    if (std::ssize(current) == size) {
      batches.push_back(workspace.list(current));
      current.clear();
    }
    current.push_back(each);
  }
  while (given[1] && !given[1]->is_none() && !current.empty() && std::ssize(current) < size) {
    workspace.work(sizeof(Value));
    current.push_back(*given[1]);
  }
  if (!current.empty()) batches.push_back(workspace.list(current));
  return workspace.list(batches, ListKind::generator);
}

Value group_by(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"attribute", "default", "case_sensitive"});
  if (!given[0]) throw workspace.error("groupby needs an attribute");
  const KeyOptions options = key_options(given[2], given[0]);
  const Value ordered = sorted_list(workspace, keyed(workspace, elements(workspace, value), options), false);
  std::vector<Value> groups, members;
  Value key;
  const auto close = [&] {
    const Value pair[] = {attribute_path(workspace, members.front(), *given[0]), workspace.list(members)};
    groups.push_back(workspace.list(pair, ListKind::tuple));
    members.clear();
  };
  for (const Value& each : ordered.as<const List*>()->items) {
    const Value now = key_of(workspace, each, options);
    if (!members.empty() && !equal(workspace, now, key)) close();
    key = now;
    members.push_back(each);
  }
  if (!members.empty()) close();
  return workspace.list(groups);
}

constexpr NamedOperation filters[] = {
    {"batch", batch},      {"count", size_of},    {"dictsort", sorted_dict},
    {"first", first},      {"groupby", group_by}, {"items", items},
    {"join", join},        {"last", last},        {"length", size_of},
    {"list", as_list},     {"max", extreme<1>},   {"min", extreme<-1>},
    {"reverse", reversed}, {"sort", sort},        {"sum", sum},
    {"unique", unique},
};

}  // namespace list_filter
}  // namespace

std::span<const NamedOperation> list_filters() {
  return list_filter::filters;
}

}  // namespace teratron::jinja
