// Output of a table: argument dump, JSON, --help and docs/flags.md.
#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/config/config.h"
#include "teratron/base/config/wrap.h"
#include "teratron/base/json.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return nullptr;
        } else {
          return v;
        }
      },
      value);
}

// JSON scalars as the user would type them, so that one parser checks both.
std::optional<std::vector<std::string>> strings_of(const nlohmann::json& json) {
  if (json.is_string()) return std::vector{json.get<std::string>()};
  if (json.is_boolean() || json.is_number()) return std::vector{json.dump()};
  if (!json.is_array()) return std::nullopt;
  std::vector<std::string> out;
  for (const nlohmann::json& item : json) {
    if (!item.is_string() && !item.is_number()) return std::nullopt;
    out.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  return out;
}

bool type_matches(const Field& field, const nlohmann::json& json) {
  switch (field.type) {
    case FieldType::boolean:
      return json.is_boolean();
    case FieldType::opt_integer:
      if (json.is_null()) return true;
      [[fallthrough]];
    case FieldType::integer:
      return json.is_number_integer();
    case FieldType::opt_real:
      if (json.is_null()) return true;
      [[fallthrough]];
    case FieldType::real:
      return json.is_number();
    case FieldType::opt_string:
      if (json.is_null()) return true;
      [[fallthrough]];
    case FieldType::string:
      return json.is_string();
    default:
      return json.is_array();
  }
}

std::optional<Problem> read_member(const Field& field, const nlohmann::json& json, void* object) {
  Problem problem{.what = fmt::format("{} has a value of the wrong type", field.name)};
  const std::optional<std::vector<std::string>> strings = strings_of(json);
  if (!type_matches(field, json) || (!json.is_null() && !strings)) return problem;
  Value value;
  if (!json.is_null()) {
    const bool unset = json.is_array() && json.empty();
    value = unset ? get_value(field, object) : parse_value(field, *strings, problem);
    if (std::holds_alternative<std::monostate>(value)) return problem;
  }
  set_value(field, value, object);
  return std::nullopt;
}

// "a|b" as "a, b".
std::string listed(std::string_view choices) {
  return fmt::format("{}", fmt::join(split(choices, '|'), ", "));
}

bool has_many_choices(const Field& field) {
  return field.traits.choices.size() > 60;
}

// The choices that are implemented, "a|b".
std::string usable_choices(const Field& field) {
  const std::vector<std::string> planned = split(field.traits.planned_choices, '|');
  std::vector<std::string> choices = split(field.traits.choices, '|');
  std::erase_if(choices,
                [&](const auto& choice) { return std::ranges::find(planned, choice) != planned.end(); });
  return fmt::format("{}", fmt::join(choices, "|"));
}

std::string value_hint(const Field& field) {
  if (!field.traits.choices.empty() && !has_many_choices(field))
    return fmt::format("{{{}}}", usable_choices(field));
  switch (field.type) {
    case FieldType::boolean:
      return "";
    case FieldType::integer:
    case FieldType::opt_integer:
      return "N";
    case FieldType::real:
    case FieldType::opt_real:
      return "X";
    case FieldType::integers:
      return "N...";
    case FieldType::reals:
      return "X...";
    case FieldType::strings:
      return "TEXT...";
    default:
      return "TEXT";
  }
}

// The flag to document: the one that changes the default.
std::string main_flag(const Field& field, const Value& initial) {
  return flag_for(field, initial == Value(true) ? Value(false) : Value(true));
}

std::string help_of(const Field& field, const Value& initial) {
  const bool off = initial == Value(true) && !field.traits.off.empty();
  if (has_many_choices(field)) return fmt::format("{}: {}", field.help, listed(field.traits.choices));
  return std::string(off ? field.traits.off_help : field.help);
}

std::string status_text(const Field& field) {
  if (field.status == FieldStatus::no_op) return "no effect: " + std::string(field.traits.note);
  if (field.status == FieldStatus::planned) return "not supported yet";
  if (field.status == FieldStatus::derived) return "computed";
  if (field.traits.required && field.traits.positional) return "required; also without the flag";
  if (field.traits.required) return "required";
  if (field.traits.positional) return "also without the flag";
  const std::string planned = listed(field.traits.planned_choices), note(field.traits.note);
  if (planned.empty()) return note;
  return fmt::format("not yet: {}{}{}", planned, note.empty() ? "" : "; ", note);
}

// The default in --help, a list without Python's brackets and quotes. Empty: none, or a switch.
std::string default_text(const Value& initial) {
  std::string text = python_str(initial);
  if (text == "None" || text == "False" || text == "True") return "";
  if (text.starts_with('[')) std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '\''; });
  return text;
}

std::string help_row(const Field& field, const Value& initial) {
  constexpr size_t indent = 34;
  std::string left = fmt::format("  {}", main_flag(field, initial));
  if (!field.traits.aliases.empty()) left += fmt::format(", {}", field.traits.aliases);
  if (const std::string hint = value_hint(field); !hint.empty()) left += ' ' + hint;
  std::string right = help_of(field, initial);
  const std::string text = field.traits.required ? "" : default_text(initial);
  if (!text.empty()) right += fmt::format(" [{}]", text);
  if (const std::string status = status_text(field); !status.empty()) right += fmt::format(" ({})", status);
  if (left.size() + 2 > indent) {
    left += '\n' + std::string(indent, ' ');
  } else {
    left.resize(indent, ' ');
  }
  return left + wrap(right, indent, 100) + '\n';
}

// Rows below a heading, which several places of the table may share.
struct HelpGroup {
  std::string_view heading;
  std::string rows = {};
};

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string table_row(const Field& field, const Value& initial) {
  std::string flags = fmt::format("`{}`", main_flag(field, initial));
  if (!field.traits.aliases.empty()) flags += fmt::format(" `{}`", field.traits.aliases);
  if (const std::string hint = value_hint(field); !hint.empty()) flags += fmt::format(" {}", cell(hint));
  return fmt::format("| {} | `{}` | {} | {} | {} |\n", flags, python_str(initial), field.since,
                     cell(help_of(field, initial)), cell(status_text(field)));
}

std::string_view verdict_text(CompatFlag::Verdict verdict) {
  if (verdict == CompatFlag::Verdict::alias) return "means";
  return verdict == CompatFlag::Verdict::no_op ? "accepted, no effect" : "not supported";
}

}  // namespace

std::string flag_for(const Field& field, const Value& value) {
  if (value == Value(false) && !field.traits.off.empty()) return split(field.traits.off)[0];
  return flag_of(field.name);
}

std::string shown_value(const Field& field, const void* object) {
  const Value value = get_value(field, object);
  const bool hidden = field.traits.secret && !std::holds_alternative<std::monostate>(value);
  return hidden ? "hidden" : python_str(value);
}

std::string yaml_value(const Value& value) {
  return json_of(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump(const Schema& schema, const void* object, const std::function<bool(const Field&)>& shown) {
  std::vector<std::string> lines;
  for (const Field& field : schema.fields()) {
    if (shown && !shown(field)) continue;
    const size_t dots = field.name.size() < 48 ? 48 - field.name.size() : 0;
    lines.push_back(fmt::format("  {} {} {}", field.name, std::string(dots, '.'),
                                printable(shown_value(field, object), 4096)));
  }
  std::sort(lines.begin(), lines.end(),
            [](const auto& a, const auto& b) { return to_lower(a) < to_lower(b); });
  std::string out = "------------------------ arguments ------------------------\n";
  for (const std::string& line : lines) out += line + '\n';
  return out + "-------------------- end of arguments ---------------------";
}

std::string to_json(const Schema& schema, const void* object) {
  Json json = Json::object();
  for (const Field& field : schema.fields())
    json[std::string(field.name)] = field.traits.secret ? Json() : json_of(get_value(field, object));
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> from_json(const Schema& schema, std::string_view text, const std::string& where,
                                   void* object) {
  const nlohmann::json json =
      parse_json(text, {.where = where, .kind = ExitCode::checkpoint, .max_depth = 4, .max_bytes = 4 << 20});
  if (!json.is_object()) throw checkpoint_error({.what = "not a JSON object", .where = where});
  std::vector<std::string> unknown;
  std::vector<Problem> problems;
  for (const auto& [key, value] : json.items()) {
    const Schema::Target* target = schema.find(key);
    if (!target || !target->field || target->field->name != key) {
      unknown.push_back(key);
    } else if (std::optional<Problem> problem = read_member(*target->field, value, object)) {
      problem->where = where;
      problems.push_back(std::move(*problem));
    }
  }
  if (!problems.empty()) throw UserError(ExitCode::checkpoint, std::move(problems));
  return unknown;
}

std::string help_text(const Schema& schema, const HelpOptions& options, const void* defaults) {
  std::vector<HelpGroup> groups;
  for (const Field& field : schema.fields()) {
    if (field.status == FieldStatus::derived) continue;
    if (!options.program.empty() && !is_for(field, options.program)) continue;
    auto group = std::ranges::find(groups, field.group, &HelpGroup::heading);
    if (group == groups.end()) group = groups.insert(group, {field.group});
    group->rows += help_row(field, get_value(field, defaults));
  }
  std::string out = fmt::format("usage: {}\n", options.usage);
  for (const auto& [heading, rows] : groups)
    out += heading.empty() ? rows : fmt::format("\n{}\n{}", heading, rows);
  return out;
}

std::string flags_document(const Schema& schema, const void* defaults) {
  std::string out =
      "# Settings\n\n"
      "Generated from the table of settings. Each setting is a flag, a key of the YAML file given with\n"
      "`--config-file` (with underscores), and a line of the listing printed at start. Flags override the "
      "file; the\n"
      "last flag wins.\n";
  std::string_view group;
  for (const Field& field : schema.fields()) {
    if (field.status == FieldStatus::derived) continue;
    if (field.group != group) {
      out += fmt::format(
          "\n## {}\n\n| flag | default | since | description | note |\n|---|---|---|---|---|\n", field.group);
    }
    group = field.group;
    out += table_row(field, get_value(field, defaults));
  }
  out += "\n## Other flags of Megatron-LM\n\n| flag | since | here | |\n|---|---|---|---|\n";
  for (const CompatFlag& flag : schema.compat_flags()) {
    out += fmt::format("| `{}` | {} | {} | {} |\n", flag.flag, flag.since, verdict_text(flag.verdict),
                       cell(flag.text));
  }
  return out;
}

}  // namespace teratron
