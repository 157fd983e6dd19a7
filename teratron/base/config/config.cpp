#include "teratron/base/config/config.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/config/spelling.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

std::string quoted(const RawOption& option) {
  return option.key.starts_with("-") ? printable(option.key) : "'" + printable(option.key) + "'";
}

const std::string& value_position(const RawOption& option) {
  return option.value_where.empty() ? option.where : option.value_where;
}

void reject(ParseResult& result, std::string what, std::string where, std::string fix) {
  result.problems.push_back({.what = std::move(what), .where = std::move(where), .fix = std::move(fix)});
}

// What to use instead of a flag of another program; empty if it is not a known one.
std::string answer_to_foreign(const Schema& schema, const RawOption& option) {
  for (const ForeignFlag& foreign : schema.foreign_flags()) {
    if (foreign.name != to_lower(canonical_name(option.key))) continue;
    const bool flag = foreign.answer.starts_with("--");
    return flag ? fmt::format("Teratron's is {}", foreign.answer) : std::string(foreign.answer);
  }
  return "";
}

void reject_unknown(const Schema& schema, const RawOption& option, ParseResult& result) {
  const bool flag = option.key.starts_with("-");
  const std::string what = fmt::format("unknown {} {}", flag ? "flag" : "key", quoted(option));
  const std::string answer = answer_to_foreign(schema, option);
  if (!answer.empty()) return reject(result, what, option.where, answer);
  std::string near = schema.nearest(option.key);
  if (!near.empty()) result.unresolved.push_back(near);
  if (!near.empty() && flag) near = flag_of(near);
  reject(result, what, option.where,
         near.empty() ? "See --help for all settings" : fmt::format("Did you mean {}?", near));
}

// "name=value name2=$1": $1 is the flag's value.
void expand_alias(const Schema& schema, const CompatFlag& alias, const RawOption& option,
                  ParseResult& result) {
  std::string meaning;
  for (const std::string& assignment : split(alias.text)) {
    const size_t equals = assignment.find('=');
    RawOption next{.key = flag_of(assignment.substr(0, equals)), .where = option.where};
    const std::string value = assignment.substr(equals + 1);
    next.values = value == "$1" ? option.values : std::vector<std::string>{value};
    meaning += fmt::format(" {}={}", next.key, fmt::join(next.values, " "));
    add_option(schema, next, result);
  }
  result.notices.push_back(fmt::format("{} is an old spelling of{}", alias.flag, meaning));
}

// A switch may also be written "=false" or, in a file, ": false". Nullopt: not a boolean.
std::optional<bool> is_switched_on(const CompatFlag& flag, const RawOption& option, ParseResult& result) {
  if (flag.arity != 0 || option.values.empty()) return !option.null;
  const Field boolean{.name = flag.flag, .type = FieldType::boolean};
  Problem problem{.where = value_position(option)};
  const Value value = parse_value(boolean, option.values, problem);
  if (const bool* on = std::get_if<bool>(&value)) return *on;
  result.problems.push_back(std::move(problem));
  return std::nullopt;
}

// Whether the program that has the flag would take its value.
bool is_chosen(const CompatFlag& flag, const RawOption& option, ParseResult& result) {
  if (flag.choices.empty()) return true;
  const Field choice{.name = flag.flag, .type = FieldType::string, .traits = {.choices = flag.choices}};
  Problem problem{.where = value_position(option)};
  if (!std::holds_alternative<std::monostate>(parse_value(choice, option.values, problem))) return true;
  result.problems.push_back(std::move(problem));
  return false;
}

void add_compat_flag(const Schema& schema, const CompatFlag& flag, const RawOption& option,
                     ParseResult& result) {
  if (!is_switched_on(flag, option, result).value_or(false)) return;
  if (flag.arity == 1 && option.values.size() != 1)
    return reject(result, fmt::format("{} needs one value", flag.flag), option.where, "Give one");
  if (!is_chosen(flag, option, result)) return;
  if (flag.verdict == CompatFlag::Verdict::alias) return expand_alias(schema, flag, option, result);
  if (flag.verdict == CompatFlag::Verdict::no_op)
    return result.notices.push_back(fmt::format("{} has no effect: {}", flag.flag, flag.text));
  constexpr std::string_view replaced = "it was replaced by ";
  reject(result, fmt::format("{} is not supported: {}", flag.flag, flag.text), option.where,
         flag.text.starts_with(replaced) ? fmt::format("Use {}", flag.text.substr(replaced.size()))
                                         : "Remove it");
}

// Flags that may be repeated add to the list of those before.
void add_earlier_values(const Field& field, ParseResult& result, Value& value) {
  auto* const list = std::get_if<std::vector<std::string>>(&value);
  const auto earlier = std::find_if(
      result.assignments.rbegin(), result.assignments.rend(),
      [&](const Assignment& each) { return each.field == &field && each.where.starts_with("--"); });
  if (!list || earlier == result.assignments.rend()) return;
  const auto& before = std::get<std::vector<std::string>>(earlier->value);
  list->insert(list->begin(), before.begin(), before.end());
}

void add_field(const Schema::Target& target, const RawOption& option, ParseResult& result) {
  const Field& field = *target.field;
  if (field.status == FieldStatus::derived) {
    return reject(result, fmt::format("{} is computed from other settings", field.name), option.where,
                  "Remove it");
  }
  Value value;
  if (!option.null) {
    Problem problem{.where = value_position(option)};
    value = field.type == FieldType::boolean && option.values.empty()
                ? Value(true)
                : parse_value(field, option.values, problem);
    if (std::holds_alternative<std::monostate>(value)) {
      result.problems.push_back(std::move(problem));
      result.unresolved.emplace_back(field.name);
      return;
    }
    if (target.negated) value = !std::get<bool>(value);
    if (field.traits.repeats && option.where.starts_with("--")) add_earlier_values(field, result, value);
  }
  result.assignments.push_back({&field, std::move(value), value_position(option)});
}

// Problems that follow from the refused value are suppressed: the field counts as unresolved.
void refuse(const Assignment& assignment, std::string fix, ParseResult& result) {
  reject(result,
         fmt::format("{} = {} is not supported yet", assignment.field->name,
                     printable(python_str(assignment.value))),
         assignment.where, std::move(fix));
  result.unresolved.emplace_back(assignment.field->name);
}

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Whether the value, or one in a list, is among these.
bool has_any(const Value& value, const std::vector<std::string>& choices) {
  const auto is_one = [&](const std::string& each) { return contains(choices, each); };
  if (const auto* const list = std::get_if<std::vector<std::string>>(&value))
    return std::ranges::any_of(*list, is_one);
  return is_one(python_str(value));
}

// The last assignment of each field.
std::map<std::string_view, const Assignment*> last_assignments(const ParseResult& result) {
  std::map<std::string_view, const Assignment*> last;
  for (const Assignment& assignment : result.assignments) last[assignment.field->name] = &assignment;
  std::erase_if(
      last, [](const auto& entry) { return std::holds_alternative<std::monostate>(entry.second->value); });
  return last;
}

}  // namespace

std::string flag_of(std::string_view name) {
  std::string out = "--" + canonical_name(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string canonical_name(std::string_view spelling) {
  const size_t begin = std::min(spelling.find_first_not_of('-'), spelling.size());
  std::string out(spelling.substr(begin));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

Schema::Schema(const Tables& tables) : tables_(tables) {
  for (const Field& field : tables_.fields) {
    add(field.name, {.field = &field});
    for (const std::string& flag : split(field.traits.aliases)) add(flag, {.field = &field});
    for (const std::string& flag : split(field.traits.off)) add(flag, {.field = &field, .negated = true});
  }
  for (const CompatFlag& flag : tables_.compat_flags) add(flag.flag, {.compat = &flag});
  for (const std::string& name : split(tables_.later_flags)) {
    if (!find(name)) add(name, {});
  }
}

void Schema::add(std::string_view spelling, const Target& target) {
  const bool fresh = index_.emplace(canonical_name(spelling), target).second;
  TERATRON_ASSERT(fresh, "two entries are spelled {}", spelling);
}

const Schema::Target* Schema::find(std::string_view spelling) const {
  const auto it = index_.find(canonical_name(spelling));
  return it == index_.end() ? nullptr : &it->second;
}

const Field& Schema::field(std::string_view name) const {
  const Target* target = find(name);
  TERATRON_ASSERT(target && target->field, "no field {}", name);
  return *target->field;
}

std::string Schema::nearest(std::string_view spelling) const {
  std::vector<std::string> names;
  for (const auto& [name, target] : index_) {
    if (target.field && target.field->status != FieldStatus::derived) names.push_back(name);
  }
  return nearest_spelling(canonical_name(spelling), names);
}

void add_option(const Schema& schema, const RawOption& option, ParseResult& result) {
  const Schema::Target* target = schema.find(option.key);
  // "masked_softmax_fusion: true" in a file is as much a no-op as "--no-masked-softmax-fusion".
  if (!target) {
    const Schema::Target* negative = schema.find("no_" + canonical_name(option.key));
    if (negative && negative->compat && negative->compat->verdict == CompatFlag::Verdict::no_op)
      target = negative;
  }
  if (!target) return reject_unknown(schema, option, result);
  if (target->compat) return add_compat_flag(schema, *target->compat, option, result);
  if (target->field) return add_field(*target, option, result);
  reject(result,
         fmt::format("{} belongs to a later Megatron-LM version and is not supported", quoted(option)),
         option.where, "Remove it");
}

bool is_for(const Field& field, const ProgramNames& program) {
  const std::vector<std::string> programs = split(field.traits.program, '|');
  return programs.empty() ||
         std::ranges::any_of(programs, [&](const std::string& each) { return contains(program, each); });
}

void review(const Schema& schema, const void* defaults, const ReviewOptions& options, ParseResult& result) {
  const auto last = last_assignments(result);
  for (const Field& field : schema.fields()) {
    const auto it = last.find(field.name);
    if (it == last.end()) continue;
    const Assignment assignment = *it->second;
    if (!is_for(field, options.program)) {
      const bool is_flag = assignment.where.starts_with("--");
      if (options.models_are_saved && (field.model || !is_flag)) continue;
      result.notices.push_back(
          fmt::format("{} has no effect on {}", flag_of(field.name), options.program.front()));
      continue;
    }
    const Value initial = get_value(field, defaults);
    if (assignment.value == initial) continue;
    const std::vector<std::string> planned = split(field.traits.planned_choices, '|');
    if (field.status == FieldStatus::no_op) {
      result.notices.push_back(fmt::format("{} has no effect: {}", flag_of(field.name), field.traits.note));
    } else if (options.refuse_planned && field.status == FieldStatus::planned) {
      const bool none = std::holds_alternative<std::monostate>(initial);
      refuse(assignment, none ? "Leave it out" : fmt::format("Leave it at {}", python_str(initial)), result);
    } else if (options.refuse_planned && has_any(assignment.value, planned)) {
      std::vector<std::string> choices = split(field.traits.choices, '|');
      std::erase_if(choices, [&](const auto& choice) { return contains(planned, choice); });
      refuse(assignment, fmt::format("Use one of {}", fmt::join(choices, ", ")), result);
    }
  }
}

Sources apply(const ParseResult& result, void* object) {
  Sources sources;
  for (const auto& [name, assignment] : last_assignments(result)) {
    set_value(*assignment->field, assignment->value, object);
    sources[std::string(name)] = assignment->where;
  }
  return sources;
}

}  // namespace teratron
