#include "teratron/tokenizer/jinja/values/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "teratron/tokenizer/jinja/values/python_text.h"
#include "teratron/tokenizer/jinja/values/workspace.h"

namespace teratron::jinja {

std::optional<int64_t> Value::integer() const {
  if (const bool* const flag = get_if<bool>()) return *flag ? 1 : 0;
  if (const int64_t* const integer = get_if<int64_t>()) return *integer;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* const real = get_if<double>()) return *real;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : members.first(size)) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, const Value& value, Workspace& workspace) {
  for (auto& [key, old] : members.first(size)) {
    workspace.work(name.size());
    if (key == name) {
      old = value;
      return;
    }
  }
  if (size == members.size()) {
    const auto larger = workspace.array<std::pair<std::string_view, Value>>(std::max<size_t>(4, 2 * size));
    std::copy(members.begin(), members.end(), larger.begin());
    members = larger;
  }
  members[size++] = {name, value};
}

std::string_view type_name(const Value& value) {
  if (const auto* const list = value.get_if<const List*>()) {
    switch ((*list)->kind) {
      case ListKind::list:
        return "list";
      case ListKind::tuple:
        return "tuple";
      default:
        return "iterator";
    }
  }
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return "str";
  if (value.is<const Dict*>()) return "dict";
  if (value.is<Namespace*>()) return "namespace";
  if (value.is<const Loop*>()) return "loop";
  return "function";
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0.0;
  if (value.is_text()) return !value.text().empty();
  if (const auto* const list = value.get_if<const List*>())
    return (*list)->kind == ListKind::generator || !(*list)->items.empty();
  if (const auto* const dict = value.get_if<const Dict*>()) return !(*dict)->members.empty();
  return true;
}

namespace {

bool equal_lists(Workspace& workspace, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(workspace, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Workspace& workspace, const Dict& a, const Dict& b) {
  if (a.members.size() != b.members.size()) return false;
  for (const auto& [key, value] : a.members) {
    const Value* const other = find_member(workspace, b, key);
    if (other == nullptr || !equal(workspace, value, *other)) return false;
  }
  return true;
}

}  // namespace

bool equal(Workspace& workspace, const Value& a, const Value& b) {
  const Workspace::Nested nested(workspace);
  workspace.work(kStepWork / 8);
  if (a.integer() && b.integer()) return a.integer() == b.integer();
  if (a.number() && b.number()) return a.number() == b.number();
  if (a.is_text() && b.is_text()) {
    workspace.work(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.is<const List*>() && b.is<const List*>())
    return equal_lists(workspace, *a.as<const List*>(), *b.as<const List*>());
  if (a.is<const Dict*>() && b.is<const Dict*>())
    return equal_dicts(workspace, *a.as<const Dict*>(), *b.as<const Dict*>());
  if (a.is<Namespace*>() && b.is<Namespace*>()) return a.as<Namespace*>() == b.as<Namespace*>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(Workspace& workspace, const Value& a, const Value& b) {
  const Workspace::Nested nested(workspace);
  workspace.work(kStepWork / 8);
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.integer() && b.integer()) return order(*a.integer(), *b.integer());
  if (a.number() && b.number()) return order(*a.number(), *b.number());
  if (a.is_text() && b.is_text()) {
    workspace.work(std::min(a.text().size(), b.text().size()));
    return order(a.text(), b.text());  // the order of UTF-8 is that of the code points
  }
  if (a.is<const List*>() && b.is<const List*>()) {
    const auto x = a.as<const List*>()->items, y = b.as<const List*>()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(workspace, x[i], y[i])) return compare(workspace, x[i], y[i]);
    }
    return order(x.size(), y.size());
  }
  for (const Value* const each : {&a, &b}) {
    if (each->is_undefined()) throw workspace.error(std::string(each->as<Undefined>().why));
  }
  throw workspace.error(fmt::format("'{}' and '{}' have no order", type_name(a), type_name(b)));
}

std::span<const Value> elements(Workspace& workspace, const Value& value) {
  if (const auto* const list = value.get_if<const List*>()) return (*list)->items;
  if (value.is_undefined()) return {};
  std::vector<Value> all;
  if (const auto* const dict = value.get_if<const Dict*>()) {
    workspace.work((*dict)->members.size() * sizeof(Value));
    for (const auto& [key, member] : (*dict)->members) all.push_back(key);
  } else if (value.is_text()) {
    const std::string_view text = value.text();
    workspace.work(text.size() * sizeof(Value));
    for (size_t i = 0; i < text.size();) {
      const size_t bytes = character_bytes(text, i);
      all.emplace_back(text.substr(i, bytes));
      i += bytes;
    }
  } else {
    throw workspace.error(fmt::format("'{}' cannot be iterated", type_name(value)));
  }
  return workspace.keep(all);
}

int64_t length(Workspace& workspace, const Value& value) {
  if (value.is_text()) {
    workspace.work(value.text().size());
    return count_characters(value.text());
  }
  if (const auto* const dict = value.get_if<const Dict*>()) return std::ssize((*dict)->members);
  if (value.is_undefined()) return 0;
  if (const auto* const list = value.get_if<const List*>(); list && (*list)->kind != ListKind::generator)
    return std::ssize((*list)->items);
  throw workspace.error(fmt::format("'{}' has no length", type_name(value)));
}

bool contains(Workspace& workspace, const Value& container, const Value& value) {
  if (container.is_text()) {
    if (!value.is_text())
      throw workspace.error(fmt::format("a text is looked for in a text, not '{}'", type_name(value)));
    return find_text(workspace, container.text(), value.text(), 0) != std::string_view::npos;
  }
  if (const auto* const dict = container.get_if<const Dict*>())
    return find_member(workspace, **dict, value) != nullptr;
  for (const Value& each : elements(workspace, container)) {
    if (equal(workspace, each, value)) return true;
  }
  return false;
}

const Value* find_member(Workspace& workspace, const Dict& dict, const Value& key) {
  for (const auto& [name, value] : dict.members) {
    if (equal(workspace, name, key)) return &value;
  }
  return nullptr;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const double size = std::abs(value);
  const bool plain = value == 0.0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, value, format).ptr);
  return plain && text.find('.') == text.npos ? text + ".0" : text;
}

namespace {

void write_text(Workspace& workspace, const Value& value, bool quoted, TextBuilder& out);

void write_members(Workspace& workspace, const Dict& dict, TextBuilder& out) {
  out << "{";
  std::string_view separator;
  for (const auto& [key, value] : dict.members) {
    out << separator;
    write_text(workspace, key, true, out);
    out << ": ";
    write_text(workspace, value, true, out);
    separator = ", ";
  }
  out << "}";
}

void write_items(Workspace& workspace, const List& list, TextBuilder& out) {
  if (list.kind == ListKind::view || list.kind == ListKind::generator)
    throw workspace.error("an iterator has no text; make a list of it with |list");
  const bool tuple = list.kind == ListKind::tuple;
  out << (tuple ? "(" : "[");
  std::string_view separator;
  for (const Value& each : list.items) {
    out << separator;
    write_text(workspace, each, true, out);
    separator = ", ";
  }
  out << (tuple ? list.items.size() == 1 ? ",)" : ")" : "]");
}

void write_text(Workspace& workspace, const Value& value, bool quoted, TextBuilder& out) {
  const Workspace::Nested nested(workspace);
  if (value.is_text()) {
    out << (quoted ? std::string_view(quoted_text(value.text())) : value.text());
  } else if (const auto* const list = value.get_if<const List*>()) {
    write_items(workspace, **list, out);
  } else if (const auto* const dict = value.get_if<const Dict*>()) {
    write_members(workspace, **dict, out);
  } else if (const bool* const flag = value.get_if<bool>()) {
    out << (*flag ? "True" : "False");
  } else if (const int64_t* const integer = value.get_if<int64_t>()) {
    out << std::to_string(*integer);
  } else if (const double* const real = value.get_if<double>()) {
    out << float_text(*real);
  } else if (value.is_none()) {
    out << "None";
  } else if (value.is_undefined()) {
    out << (quoted ? "Undefined" : "");
  } else {
    throw workspace.error(fmt::format("'{}' has no text", type_name(value)));
  }
}

}  // namespace

std::string_view to_text(Workspace& workspace, const Value& value) {
  if (value.is_text()) return value.text();
  TextBuilder out(workspace);
  write_text(workspace, value, false, out);
  return out.keep();
}

}  // namespace teratron::jinja
