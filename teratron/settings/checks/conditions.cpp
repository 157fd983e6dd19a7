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

// A value that is not a list is its only element.
std::vector<std::string> elements(const Value& value) {
  std::vector<std::string> texts;
  const auto add = [&](const auto& list) {
    for (const auto& each : list) texts.push_back(python_str(each));
  };
  if (const auto* const strings = std::get_if<std::vector<std::string>>(&value)) {
    add(*strings);
  } else if (const auto* const reals = std::get_if<std::vector<double>>(&value)) {
    add(*reals);
  } else if (const auto* const integers = std::get_if<std::vector<int64_t>>(&value)) {
    add(*integers);
  } else {
    texts.push_back(python_str(value));
  }
  return texts;
}

// words: a flag, a flag and its values, or a flag, ">" and a number.
std::optional<HeldCondition> check(const std::vector<std::string>& words, const Arguments& args,
                                   const Sources& sources) {
  const Schema::Target* target = arguments_schema().find(words[0]);
  TERATRON_ASSERT(target && target->field, "no setting {}", words[0]);
  const Field& field = *target->field;
  const Value value = get_value(field, &args);
  HeldCondition held{field.name, words[0]};
  if (words.size() == 1) {
    const bool holds = target->negated ? value == Value(false) : is_on(field, value, sources);
    return holds ? std::optional(held) : std::nullopt;
  }
  const std::vector<std::string> choices = split(words[1], '|');
  const bool above = words.size() == 3;
  for (const std::string& element : elements(value)) {
    const bool holds = above ? element != "None" && std::stod(element) > std::stod(words[2])
                             : std::ranges::find(choices, element) != choices.end();
    held.flag = words[0] + " " + element;
    if (holds) return held;
  }
  return std::nullopt;
}

}  // namespace

std::vector<HeldCondition> all_held(std::string_view text, const Arguments& args, const Sources& sources) {
  std::vector<HeldCondition> all;
  std::vector<std::string> words = split(text);
  words.emplace_back("or");
  for (auto begin = words.begin(); begin != words.end();) {
    const auto end = std::find(begin, words.end(), "or");
    if (auto held = check({begin, end}, args, sources)) all.push_back(std::move(*held));
    begin = end + 1;
  }
  return all;
}

std::optional<HeldCondition> find_held(std::string_view text, const Arguments& args, const Sources& sources) {
  std::vector<HeldCondition> all = all_held(text, args, sources);
  return all.empty() ? std::nullopt : std::optional(std::move(all.front()));
}

bool applies(std::string_view text, const Arguments& args, const Sources& sources) {
  constexpr std::string_view conjunction = " and ", negation = "without ";
  while (!text.empty()) {
    const size_t end = std::min(text.find(conjunction), text.size());
    std::string_view clause = text.substr(0, end);
    text.remove_prefix(std::min(end + conjunction.size(), text.size()));
    const bool negated = clause.starts_with(negation);
    if (negated) clause.remove_prefix(negation.size());
    if (find_held(clause, args, sources).has_value() == negated) return false;
  }
  return true;
}

}  // namespace teratron
