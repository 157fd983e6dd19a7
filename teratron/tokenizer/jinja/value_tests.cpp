// Tests: value is name.
#include "teratron/tokenizer/jinja/filters.h"
#include "teratron/tokenizer/jinja/operations.h"
#include "teratron/tokenizer/jinja/values/python_text.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {

bool is_sequence(const Value& value) {
  const auto* const list = value.get_if<const List*>();
  return value.is_text() || value.is<const Dict*>() || value.is_undefined() ||
         (list != nullptr && (*list)->kind != ListKind::generator);
}

bool is_kind(const Value& value, std::string_view name) {
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is<const Dict*>();
  if (name == "number") return value.number().has_value();
  if (name == "integer") return value.is<int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && value.as<bool>();
  if (name == "false") return value.is<bool>() && !value.as<bool>();
  if (name == "none") return value.is_none();
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "iterable") return is_sequence(value) || value.is<const List*>();
  if (name == "sequence") return is_sequence(value);
  if (name == "callable") return value.is<const Function*>();
  return false;  // escaped
}

constexpr std::string_view kinds[] = {"string",   "mapping",   "number",   "integer",  "float",
                                      "boolean",  "true",      "false",    "none",     "defined",
                                      "iterable", "undefined", "sequence", "callable", "escaped"};

constexpr std::pair<std::string_view, std::string_view> comparisons[] = {
    {"==", "=="},      {"eq", "=="},         {"equalto", "=="}, {"!=", "!="}, {"ne", "!="}, {">", ">"},
    {"gt", ">"},       {"greaterthan", ">"}, {">=", ">="},      {"ge", ">="}, {"<", "<"},   {"lt", "<"},
    {"lessthan", "<"}, {"<=", "<="},         {"le", "<="},      {"in", "in"},
};

bool cased_as(std::string_view text, bool is_upper) {
  bool has_cased = false;
  for (size_t at = 0; at < text.size(); at += character_bytes(text, at)) {
    const std::string_view character = text.substr(at, character_bytes(text, at));
    const char* p = character.data();
    if ((unicode::characters()[unicode::next(p)] & unicode::python_cased) == 0) continue;
    has_cased = true;
    if ((lower_text(character) == character) == is_upper) return false;
  }
  return has_cased;
}

int64_t remainder_of(Workspace& workspace, const Value& value, const Value& divisor) {
  const Value rest = binary_operation(workspace, "%", value, divisor);
  return rest.number().value_or(1.0) == 0.0 ? 0 : 1;
}

bool same(Workspace& workspace, const Value& a, const Value& b) {
  return type_name(a) == type_name(b) && equal(workspace, a, b);
}

template <typename Range, typename Key>
auto* find_in(Range& range, Key key) {
  for (auto& each : range) {
    if (key(each)) return &each;
  }
  return static_cast<decltype(&*std::begin(range))>(nullptr);
}

}  // namespace

bool is_test(std::string_view name) {
  return find_in(kinds, [&](auto& each) { return each == name; }) != nullptr ||
         find_in(comparisons, [&](auto& each) { return each.first == name; }) != nullptr || name == "odd" ||
         name == "even" || name == "divisibleby" || name == "lower" || name == "upper" || name == "sameas" ||
         name == "filter" || name == "test";
}

bool apply_test(Workspace& workspace, std::string_view name, const Value& value, Arguments arguments) {
  arguments.function = name;
  if (!is_test(name)) throw workspace.error(fmt::format("there is no test '{}' here", printable(name, 40)));
  if (find_in(kinds, [&](auto& each) { return each == name; }) != nullptr) {
    arguments.bind(workspace, {});
    return is_kind(value, name);
  }
  const auto given = arguments.bind(workspace, {"other"});
  if (name == "odd" || name == "even") return (remainder_of(workspace, value, 2) == 0) == (name == "even");
  if (name == "filter") return is_filter(text_argument(workspace, value));
  if (name == "test") return is_test(text_argument(workspace, value));
  if (name == "upper" || name == "lower") return cased_as(to_text(workspace, value), name == "upper");
  if (!given[0]) throw workspace.error(fmt::format("the test '{}' needs a value to compare with", name));
  if (name == "divisibleby") return remainder_of(workspace, value, *given[0]) == 0;
  if (name == "sameas") return same(workspace, value, *given[0]);
  const auto* const found = find_in(comparisons, [&](auto& each) { return each.first == name; });
  return comparison(workspace, found->second, value, *given[0]);
}

}  // namespace teratron::jinja
