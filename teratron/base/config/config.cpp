#include "teratron/base/config/config.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/config/spelling.h"
#include "teratron/base/words.h"

namespace teratron {

namespace {

bool is_flag(std::string_view token) {
  if (token.starts_with("--")) return true;
  const bool number =
      token.size() > 1 && (std::isdigit(static_cast<unsigned char>(token[1])) || token[1] == '.');
  return token.size() > 1 && token[0] == '-' && !number;
}

bool is_list(FieldType type) {
  return type == FieldType::integers || type == FieldType::texts;
}

// How many values a flag takes; -1: any number.
int arity(const Schema::Target& target) {
  if (target.old) return target.old->values;
  if (!target.field) return -1;
  if (is_list(target.field->type)) return -1;
  return target.field->type == FieldType::boolean ? 0 : 1;
}

std::string shown(const Written& written) {
  return written.key.starts_with("-") ? printable(written.key) : "'" + printable(written.key) + "'";
}

void report_unknown(const Schema& schema, const Written& written, Settings& settings) {
  const bool flag = written.key.starts_with("-");
  std::string near = schema.nearest(written.key);
  if (!near.empty()) settings.unsettled.push_back(near);
  if (!near.empty() && flag) near = flag_of(near);
  settings.problems.push_back(
      {.what = fmt::format("unknown {} {}", flag ? "flag" : "key", shown(written)),
       .where = written.where,
       .fix = near.empty() ? "See --help for all settings" : fmt::format("Did you mean {}?", near)});
}

// "name=value name2=$1": $1 is the value that was given.
void set_meaning(const Schema& schema, const OldFlag& old, const Written& written, Settings& settings) {
  std::string meaning;
  for (const std::string& assignment : words(old.text)) {
    const size_t equals = assignment.find('=');
    Written next{.key = flag_of(assignment.substr(0, equals)), .where = written.where};
    const std::string value = assignment.substr(equals + 1);
    next.texts = value == "$1" ? written.texts : std::vector<std::string>{value};
    meaning += fmt::format(" {}={}", next.key, fmt::join(next.texts, " "));
    set(schema, next, settings);
  }
  settings.notices.push_back(fmt::format("{} is an old spelling and means{}", old.flag, meaning));
}

// A switch that is not a field may still say "=false" or, in a file, ": false". Nullopt: neither true nor false.
std::optional<bool> switched_on(const OldFlag& old, const Written& written, Settings& settings) {
  if (old.values != 0 || written.texts.empty()) return !written.null;
  const Field boolean{.name = old.flag, .type = FieldType::boolean};
  Problem problem{.where = written.value_where.empty() ? written.where : written.value_where};
  const Value value = parse_value(boolean, written.texts, problem);
  if (const bool* on = std::get_if<bool>(&value)) return *on;
  settings.problems.push_back(std::move(problem));
  return std::nullopt;
}

std::string instead_of(const OldFlag& old) {
  constexpr std::string_view replaced = "it was replaced by ";
  return old.text.starts_with(replaced) ? fmt::format("Use {}", old.text.substr(replaced.size()))
                                        : "Remove it";
}

void set_old(const Schema& schema, const OldFlag& old, const Written& written, Settings& settings) {
  if (!switched_on(old, written, settings).value_or(false)) return;
  if (old.values == 1 && written.texts.size() != 1) {
    settings.problems.push_back(
        {.what = fmt::format("{} needs one value", old.flag), .where = written.where, .fix = "Give one"});
    return;
  }
  switch (old.verdict) {
    case OldFlag::Verdict::means:
      return set_meaning(schema, old, written, settings);
    case OldFlag::Verdict::inherent:
      settings.notices.push_back(fmt::format("{} has no effect: {}", old.flag, old.text));
      return;
    case OldFlag::Verdict::rejected:
      settings.problems.push_back({.what = fmt::format("{} is not supported: {}", old.flag, old.text),
                                   .where = written.where,
                                   .fix = instead_of(old)});
  }
}

void set_field(const Schema::Target& target, const Written& written, Settings& settings) {
  const Field& field = *target.field;
  if (field.status == FieldStatus::derived) {
    settings.problems.push_back({.what = fmt::format("{} is computed from other settings", field.name),
                                 .where = written.where,
                                 .fix = "Remove it"});
    return;
  }
  const std::string& where = written.value_where.empty() ? written.where : written.value_where;
  Value value;
  if (!written.null) {
    Problem problem{.where = where};
    value = field.type == FieldType::boolean && written.texts.empty()
                ? Value(true)
                : parse_value(field, written.texts, problem);
    if (std::holds_alternative<std::monostate>(value)) {
      settings.problems.push_back(std::move(problem));
      settings.unsettled.emplace_back(field.name);
      return;
    }
    if (target.negated) value = !std::get<bool>(value);
  }
  settings.values.push_back({&field, std::move(value), where});
}

void refuse(const Setting& setting, std::string fix, Settings& settings) {
  const std::string value = printable(python_text(setting.value));
  settings.problems.push_back(
      {.what = fmt::format("{} = {} is not supported yet", setting.field->name, value),
       .where = setting.where,
       .fix = std::move(fix)});
  settings.unsettled.emplace_back(setting.field->name);  // what it contradicts is no concern now
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
    for (const std::string& flag : words(field.traits.flags)) add(flag, {.field = &field});
    for (const std::string& flag : words(field.traits.off)) add(flag, {.field = &field, .negated = true});
  }
  for (const OldFlag& old : tables_.old_flags) add(old.flag, {.old = &old});
  for (const std::string& name : words(tables_.later_flags)) {
    if (!find(name)) add(name, {});
  }
}

void Schema::add(std::string_view spelling, const Target& target) {
  const bool fresh = index_.emplace(canonical_name(spelling), target).second;
  TERATRON_ASSERT(fresh, "two fields are spelled {}", spelling);
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

void set(const Schema& schema, const Written& written, Settings& settings) {
  const Schema::Target* target = schema.find(written.key);
  // "masked_softmax_fusion: true" in a file says as little as "--no-masked-softmax-fusion".
  if (!target) {
    const Schema::Target* negative = schema.find("no_" + canonical_name(written.key));
    if (negative && negative->old && negative->old->verdict == OldFlag::Verdict::inherent) target = negative;
  }
  if (!target) return report_unknown(schema, written, settings);
  if (target->old) return set_old(schema, *target->old, written, settings);
  if (target->field) return set_field(*target, written, settings);
  settings.problems.push_back(
      {.what = fmt::format("{} belongs to a later Megatron-LM version and is not supported", shown(written)),
       .where = written.where,
       .fix = "Remove it"});
}

void read_flags(const Schema& schema, std::span<const std::string> args, Settings& settings) {
  size_t i = 0;
  while (i < args.size()) {
    const std::string& token = args[i++];
    if (token == "--help" || token == "-h") {
      settings.help = true;
      continue;
    }
    if (!is_flag(token)) {
      settings.problems.push_back(
          {.what = fmt::format("unexpected argument '{}'", printable(token)),
           .where = i > 1 ? "after " + printable(args[i - 2]) : "command line",
           .fix = "Settings are written --name value, switches --name or --name=true"});
      continue;
    }
    const size_t equals = token.find('=');
    Written written{.key = token.substr(0, equals)};
    const Schema::Target* target = schema.find(written.key);
    const int wanted = target ? arity(*target) : -1;
    if (equals != std::string::npos) written.texts.push_back(token.substr(equals + 1));
    while (equals == std::string::npos && i < args.size() && !is_flag(args[i]) &&
           (wanted < 0 || static_cast<int>(written.texts.size()) < wanted)) {
      written.texts.push_back(args[i++]);
    }
    written.where = printable(written.key);
    set(schema, written, settings);
  }
}

void review(const Schema& schema, const void* defaults, const ReviewOptions& options, Settings& settings) {
  std::map<std::string_view, const Setting*> last;
  for (const Setting& setting : settings.values) last[setting.field->name] = &setting;
  for (const Field& field : schema.fields()) {
    const auto it = last.find(field.name);
    if (it == last.end() || std::holds_alternative<std::monostate>(it->second->value)) continue;
    const Setting& setting = *it->second;
    const std::vector<std::string> programs = words(field.traits.program, '|');
    if (!programs.empty() && std::find(programs.begin(), programs.end(), options.program) == programs.end()) {
      settings.notices.push_back(fmt::format("{} has no effect on {}", flag_of(field.name), options.program));
      continue;
    }
    if (setting.value == get_value(field, defaults)) continue;
    const std::vector<std::string> planned = words(field.traits.planned_choices, '|');
    const std::string text = python_text(setting.value);
    if (field.status == FieldStatus::inherent) {
      settings.notices.push_back(fmt::format("{} has no effect: {}", flag_of(field.name), field.traits.note));
    } else if (options.refuse_planned && field.status == FieldStatus::planned) {
      const Value initial = get_value(field, defaults);
      const bool none = std::holds_alternative<std::monostate>(initial);
      refuse(setting, none ? "Leave it out" : fmt::format("Leave it at {}", python_text(initial)), settings);
    } else if (options.refuse_planned && std::find(planned.begin(), planned.end(), text) != planned.end()) {
      std::vector<std::string> built = words(field.traits.choices, '|');
      std::erase_if(built, [&](const auto& c) {
        return std::find(planned.begin(), planned.end(), c) != planned.end();
      });
      refuse(setting, fmt::format("Use one of {}", fmt::join(built, ", ")), settings);
    }
  }
}

Sources apply(const Settings& settings, void* object) {
  std::map<std::string, const Setting*> last;
  for (const Setting& setting : settings.values) last[std::string(setting.field->name)] = &setting;
  Sources sources;
  for (const auto& [name, setting] : last) {
    if (std::holds_alternative<std::monostate>(setting->value)) continue;
    set_value(*setting->field, setting->value, object);
    sources[name] = setting->where;
  }
  return sources;
}

}  // namespace teratron
