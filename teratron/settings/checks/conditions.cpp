#include "teratron/settings/checks/conditions.h"

#include <algorithm>

#include "teratron/base/strings.h"

namespace teratron {

namespace {

bool is_on(const Field& field, const Value& value, const Sources& sources) {
  const auto source = sources.find(field.name);
  switch (field.type) {
    case FieldType::boolean:
      return std::get<bool>(value);
    case FieldType::integer:
      return std::get<int64_t>(value) != 0;
    case FieldType::real:
      return std::get<double>(value) != 0;
    default:  // an empty list is None
      return python_str(value) != "None" && (source == sources.end() || source->second != derived_source);
  }
}

// words: a flag, a flag and its values, or a flag, ">" and a number.
std::optional<HeldCondition> check(const std::vector<std::string>& words, const Arguments& args,
                                   const Sources& sources) {
  const Schema::Target* target = arguments_schema().find(words[0]);
  TERATRON_ASSERT(target && target->field, "no setting {}", words[0]);
  const Field& field = *target->field;
  const Value value = get_value(field, &args);
  HeldCondition held{field.name, words[0]};
  bool holds = false;
  if (words.size() == 1) {
    holds = target->negated ? value == Value(false) : is_on(field, value, sources);
  } else if (words.size() == 2) {
    const std::vector<std::string> values = split(words[1], '|');
    held.flag += " " + python_str(value);
    holds = std::find(values.begin(), values.end(), python_str(value)) != values.end();
  } else {
    held.flag += " > " + words[2];
    const auto* number = std::get_if<int64_t>(&value);
    holds = number && *number > std::stoll(words[2]);
  }
  return holds ? std::optional(held) : std::nullopt;
}

}  // namespace

std::optional<HeldCondition> find_held(std::string_view text, const Arguments& args, const Sources& sources) {
  std::vector<std::string> words = split(text);
  words.emplace_back("or");
  for (auto begin = words.begin(); begin != words.end();) {
    const auto end = std::find(begin, words.end(), "or");
    if (auto held = check({begin, end}, args, sources)) return held;
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace teratron
