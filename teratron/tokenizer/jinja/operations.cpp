#include "teratron/tokenizer/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "teratron/tokenizer/jinja/loop.h"
#include "teratron/tokenizer/jinja/methods.h"
#include "teratron/tokenizer/jinja/values/format.h"
#include "teratron/tokenizer/jinja/values/python_text.h"

namespace teratron::jinja {

void require_defined(Workspace& workspace, const Value& value) {
  if (value.is_undefined()) throw workspace.error(std::string(value.as<Undefined>().why));
}

namespace {

UserError no_operator(Workspace& workspace, std::string_view name, const Value& a, const Value& b) {
  return workspace.error(fmt::format("'{}' does not join '{}' and '{}'", name, type_name(a), type_name(b)));
}

int64_t floor_division(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// nullopt: the result has more than 64 bits.
std::optional<int64_t> power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;
  }
  return result;
}

Value integer_operation(Workspace& workspace, std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (name == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    const auto value = power(a, b);
    overflows = !value;
    result = value.value_or(0);
  } else {
    if (b == 0) throw workspace.error("division by zero");
    if (name == "/") return static_cast<double>(a) / static_cast<double>(b);
    overflows = b == -1 && a == INT64_MIN;
    if (!overflows) result = name == "//" ? floor_division(a, b) : a - floor_division(a, b) * b;
  }
  if (overflows) throw workspace.error(fmt::format("the result of '{}' has more than 64 bits", name));
  return result;
}

Value real_operation(Workspace& workspace, std::string_view name, double a, double b) {
  if (name == "+") return a + b;
  if (name == "-") return a - b;
  if (name == "*") return a * b;
  if (name == "**") return std::pow(a, b);
  if (b == 0.0) throw workspace.error("division by zero");
  if (name == "/") return a / b;
  const double remainder = std::fmod(a, b);
  const bool shifts = remainder != 0.0 && (remainder < 0) != (b < 0);
  if (name == "%") return shifts ? remainder + b : remainder;
  return std::floor((a - remainder) / b + 0.5) - (shifts ? 1.0 : 0.0);
}

Value repeated(Workspace& workspace, const Value& value, int64_t times) {
  if (value.is_text()) {
    TextBuilder out(workspace);
    out.repeat(value.text(), times);
    return out.keep();
  }
  const List& list = *value.as<const List*>();
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !list.items.empty(); ++i) {
    workspace.work(list.items.size() * sizeof(Value));
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return workspace.list(items, list.kind);
}

bool is_list(const Value& value) {
  const auto* const list = value.get_if<const List*>();
  return list != nullptr && ((*list)->kind == ListKind::list || (*list)->kind == ListKind::tuple);
}

Value sum_of_lists(Workspace& workspace, const List& a, const List& b) {
  std::vector<Value> items(a.items.begin(), a.items.end());
  workspace.work((a.items.size() + b.items.size()) * sizeof(Value));
  items.insert(items.end(), b.items.begin(), b.items.end());
  return workspace.list(items, a.kind);
}

}  // namespace

Value binary_operation(Workspace& workspace, std::string_view name, const Value& a, const Value& b) {
  require_defined(workspace, a);
  if (name == "%" && a.is_text()) return workspace.keep(percent_format(workspace, a.text(), b));
  require_defined(workspace, b);
  const auto x = a.integer(), y = b.integer();
  if (x && y) return integer_operation(workspace, name, *x, *y);
  if (a.number() && b.number()) return real_operation(workspace, name, *a.number(), *b.number());
  if (name == "+" && a.is_text() && b.is_text()) {
    TextBuilder out(workspace);
    out << a.text() << b.text();
    return out.keep();
  }
  if (name == "+" && is_list(a) && is_list(b) && a.as<const List*>()->kind == b.as<const List*>()->kind)
    return sum_of_lists(workspace, *a.as<const List*>(), *b.as<const List*>());
  if (name == "*" && (a.is_text() || is_list(a)) && y) return repeated(workspace, a, *y);
  if (name == "*" && (b.is_text() || is_list(b)) && x) return repeated(workspace, b, *x);
  throw no_operator(workspace, name, a, b);
}

Value signed_value(Workspace& workspace, std::string_view sign, const Value& value) {
  require_defined(workspace, value);
  if (const auto integer = value.integer())
    return sign == "+" ? Value(*integer) : integer_operation(workspace, "-", 0, *integer);
  if (const auto number = value.number()) return sign == "+" ? *number : -*number;
  throw workspace.error(fmt::format("'{}' has no sign", type_name(value)));
}

bool comparison(Workspace& workspace, std::string_view name, const Value& a, const Value& b) {
  if (name == "==") return equal(workspace, a, b);
  if (name == "!=") return !equal(workspace, a, b);
  if (name == "in") return contains(workspace, b, a);
  if (name == "not in") return !contains(workspace, b, a);
  const int order = compare(workspace, a, b);
  return name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
}

namespace {

Value missing(Workspace& workspace, const Value& value, std::string_view name) {
  const std::string_view object = value.is<const Dict*>()   ? "dict object"
                                  : value.is<const List*>() ? "list object"
                                                            : type_name(value);
  return Undefined{workspace.keep(fmt::format("'{}' has no attribute '{}'", object, printable(name, 60)))};
}

}  // namespace

Value attribute_of(Workspace& workspace, const Value& value, std::string_view name) {
  require_defined(workspace, value);
  if (const auto method = find_method(workspace, value, name)) return *method;
  if (const auto* const dict = value.get_if<const Dict*>()) {
    if (const Value* const member = find_member(workspace, **dict, Value(name))) return *member;
  }
  if (const auto* const space = value.get_if<Namespace*>()) {
    workspace.work((*space)->size * 16);
    if (const Value* const member = (*space)->find(name)) return *member;
  }
  if (const auto* const loop = value.get_if<const Loop*>()) {
    if (const auto attribute = loop_attribute(workspace, **loop, name)) return *attribute;
  }
  return missing(workspace, value, name);
}

Value item_of(Workspace& workspace, const Value& value, const Value& index) {
  require_defined(workspace, value);
  if (const auto* const dict = value.get_if<const Dict*>()) {
    if (const Value* const member = find_member(workspace, **dict, index)) return *member;
  }
  const auto position = index.integer();
  if (position && (value.is_text() || is_list(value))) {
    const int64_t size = length(workspace, value);
    const int64_t at = *position < 0 ? *position + size : *position;
    if (at >= 0 && at < size) {
      if (!value.is_text()) return value.as<const List*>()->items[static_cast<size_t>(at)];
      const size_t byte = character_offset(value.text(), at);
      return value.text().substr(byte, character_bytes(value.text(), byte));
    }
  }
  if (index.is_text()) {
    if (value.is<Namespace*>() || value.is<const Loop*>())
      return attribute_of(workspace, value, index.text());
    if (const auto method = find_method(workspace, value, index.text())) return *method;
  }
  return missing(workspace, value, to_text(workspace, index));
}

Value slice_of(Workspace& workspace, const Value& value, const Slice& slice) {
  require_defined(workspace, value);
  if (!value.is_text() && !is_list(value)) return missing(workspace, value, "[:]");
  const std::span<const Value> items = elements(workspace, value);
  const int64_t size = std::ssize(items);
  const int64_t step = integer_argument(workspace, slice.step, 1);
  if (step == 0) throw workspace.error("the step of a slice is 0");
  const auto bound = [&](const Value& given, int64_t otherwise) {
    int64_t at = integer_argument(workspace, given, otherwise);
    if (given.is_none()) return at;
    if (at < 0) at = std::max<int64_t>(at, -size - 1) + size;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t start = bound(slice.start, step > 0 ? 0 : size - 1);
  const int64_t stop = bound(slice.stop, step > 0 ? size : -1);
  const int64_t stride = std::clamp<int64_t>(step, -size - 1, size + 1);
  std::vector<Value> chosen;
  for (int64_t i = start; stride > 0 ? i < stop : i > stop; i += stride)
    chosen.push_back(items[static_cast<size_t>(i)]);
  if (!value.is_text()) return workspace.list(chosen, value.as<const List*>()->kind);
  TextBuilder out(workspace);
  for (const Value& each : chosen) out << each.text();
  return out.keep();
}

Value call_value(Workspace& workspace, const Value& callee, const Arguments& arguments) {
  require_defined(workspace, callee);
  const Workspace::Nested nested(workspace);
  if (const auto* const function = callee.get_if<const Function*>()) {
    Arguments named = arguments;
    named.function = (*function)->name;
    return (*function)->call(workspace, **function, named);
  }
  const auto* const loop = callee.get_if<const Loop*>();
  if (loop != nullptr && (*loop)->again != nullptr)
    return (*loop)->again->call(workspace, *(*loop)->again, arguments);
  throw workspace.error(fmt::format("'{}' is not something to call", type_name(callee)));
}

}  // namespace teratron::jinja
