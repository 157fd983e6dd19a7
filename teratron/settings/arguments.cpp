#include "teratron/settings/arguments.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"
#include "teratron/settings/config_file.h"
#include "teratron/settings/help_rows.h"

namespace teratron {

namespace {

// Settings of the --config-file given in `flags`.
ParseResult file_settings(const Schema& schema, const ParseResult& flags) {
  ParseResult result;
  const Assignment* file = nullptr;
  for (const Assignment& assignment : flags.assignments) {
    if (assignment.field->name == "config_file") file = &assignment;
  }
  if (file && std::holds_alternative<std::string>(file->value)) {
    const bool launched = process_environment("TERATRON_BACKEND").has_value();
    read_config_file({std::get<std::string>(file->value), file->where, schema, launched}, result);
  }
  return result;
}

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void append(ParseResult& to, ParseResult&& from) {
  append(to.assignments, std::move(from.assignments));
  append(to.problems, std::move(from.problems));
  append(to.notices, std::move(from.notices));
  append(to.unresolved, std::move(from.unresolved));
}

// Without a resolver the user's choice would be ignored.
void assert_no_architecture(const ParseResult& given) {
  for (const Assignment& assignment : given.assignments) {
    const std::string_view name = assignment.field->name;
    TERATRON_ASSERT(name != "model_preset" && name != "hf_config" && name != "hf",
                    "ParseOptions::architecture is not set");
  }
}

// The program's table with additional fields.
struct ExtendedSchema {
  explicit ExtendedSchema(std::vector<Field> all)
      : fields(std::move(all)),
        schema({.fields = fields,
                .compat_flags = arguments_schema().compat_flags(),
                .later_flags = arguments_schema().later_flags(),
                .foreign_flags = arguments_schema().foreign_flags()}) {}
  std::vector<Field> fields;
  Schema schema;
};

std::vector<Field> extended_fields(std::span<const Field> extra_fields) {
  const std::span<const Field> known = arguments_schema().fields();
  std::vector<Field> all(known.begin(), known.end());
  for (const Field& field : extra_fields) {
    const auto row = std::ranges::find(all, field.name, &Field::name);
    if (row != all.end() && !field.storage) {
      *row = field;
    } else {
      all.push_back(field);
    }
  }
  return all;
}

std::shared_ptr<const Schema> schema_of(std::vector<Field> fields) {
  const auto extended = std::make_shared<const ExtendedSchema>(std::move(fields));
  return {extended, &extended->schema};
}

// Without notices: the user did not write them.
ParseResult program_defaults(const Schema& schema, std::span<const ArgsDefault> defaults,
                             const ReviewOptions& options) {
  ParseResult result;
  for (const auto& [name, value] : defaults) {
    const Schema::Target* target = schema.find(name);
    const bool list = target && target->field && is_list(target->field->type);
    add_option(schema,
               {.key = name,
                .values = list ? split(value) : std::vector{value},
                .where = std::string(program_default_source)},
               result);
  }
  const Arguments initial;
  review(schema, &initial, options, result);
  result.notices.clear();
  return result;
}

}  // namespace

bool is_users(std::string_view source) {
  return source != derived_source && source != mock_default_source && source != program_default_source;
}

ParsedArguments parse_arguments(const Program& program, std::span<const std::string> args,
                                const ParseOptions& options) {
  ParsedArguments parsed{.program = program};
  if (!options.extra_fields.empty()) parsed.schema = schema_of(extended_fields(options.extra_fields));
  const Schema& schema = parsed.schema ? *parsed.schema : arguments_schema();
  ParseResult flags;
  read_flags(schema, args, flags);
  parsed.help = flags.help;
  if (parsed.help) return parsed;
  const ReviewOptions review_options{.program = program.names,
                                     .refuse_planned = options.refuse_planned,
                                     .models_are_saved = program.models_are_saved};
  // In increasing priority: defaults, architecture, environment, file, flags.
  ParseResult result = program_defaults(schema, options.defaults, review_options);
  ParseResult given;
  read_accelerate_environment(process_environment, given);
  ParseResult file = file_settings(schema, flags);
  // Whatever else seems to be missing may be in the file.
  if (file.unreadable) throw UserError(ExitCode::config, std::move(file.problems));
  append(given, std::move(file));
  append(given, std::move(flags));
  ParseResult chosen;
  if (options.architecture) {
    ParseResult all = result;
    append(all, ParseResult(given));
    chosen = options.architecture(program.names.front(), schema, all);
  } else {
    assert_no_architecture(given);
  }
  review(schema, &parsed.args, review_options, given);
  append(chosen, std::move(given));
  append(result, std::move(chosen));
  if (!result.problems.empty() && !options.defer_problems)
    throw UserError(ExitCode::config, std::move(result.problems));
  parsed.sources = apply(result, &parsed.args);
  parsed.notices = std::move(result.notices);
  parsed.problems = std::move(result.problems);
  parsed.unresolved = std::move(result.unresolved);
  return parsed;
}

Field bound_setting(std::string_view name, Arguments* args, std::string_view help) {
  Field field = arguments_schema().field(name);
  field.storage = reinterpret_cast<char*>(args) + field.offset;
  field.group = {};
  if (!help.empty()) field.help = help;
  return field;
}

std::string dump(const Arguments& args) {
  return dump(arguments_schema(), &args);
}

std::string dump(const ParsedArguments& parsed) {
  return dump(parsed.schema ? *parsed.schema : arguments_schema(), &parsed.args);
}

namespace {

const Schema& schema_of_run(const ParsedArguments& parsed) {
  return parsed.schema ? *parsed.schema : arguments_schema();
}

// Where a value comes from that is not the default.
enum class Origin : uint8_t { none, user, model, derived };

Origin origin_of(const ParsedArguments& parsed, const Field& field) {
  static const Arguments defaults;
  const auto source = parsed.sources.find(field.name);
  if (field.status == FieldStatus::derived || source == parsed.sources.end()) return Origin::none;
  const bool differs = field.storage || get_value(field, &parsed.args) != get_value(field, &defaults);
  if (!differs) return Origin::none;
  if (source->second == derived_source) return Origin::derived;
  return source->second.find("config.json") == std::string::npos ? Origin::user : Origin::model;
}

}  // namespace

std::string dump_changes(const ParsedArguments& parsed) {
  const Schema& schema = schema_of_run(parsed);
  std::map<Origin, int64_t> counts;
  for (const Field& field : schema.fields()) ++counts[origin_of(parsed, field)];
  std::string text = dump(schema, &parsed.args,
                          [&](const Field& field) { return origin_of(parsed, field) == Origin::user; });
  std::string more = fmt::format("{} more settings have their defaults", counts[Origin::none]);
  if (counts[Origin::model] > 0) more += fmt::format(", {} are those of config.json", counts[Origin::model]);
  if (counts[Origin::derived] > 0) more += fmt::format(", {} were derived", counts[Origin::derived]);
  const bool has_folder = parsed.args.save || parsed.args.run_dir;
  if (has_folder) more += ": metrics.jsonl and report.html list all";
  return text.insert(text.rfind('\n') + 1, fmt::format("  ({})\n", more));  // before the end of the listing
}

std::string resolved_yaml(const ParsedArguments& parsed) {
  std::string text =
      "# The settings of this run. `--config-file` with this file gives them again; flags override it.\n";
  std::string derived;
  for (const Field& field : schema_of_run(parsed).fields()) {
    const Origin origin = origin_of(parsed, field);
    if (origin == Origin::none || field.traits.secret || field.name == "config_file") continue;
    const std::string line = fmt::format("{}: {}", field.name, yaml_value(get_value(field, &parsed.args)));
    if (origin == Origin::derived) {
      derived += fmt::format("# {}\n", line);
    } else {
      text += fmt::format("{}  # {}\n", line, printable(parsed.sources.find(field.name)->second));
    }
  }
  return derived.empty() ? text : fmt::format("{}\n# Derived from these:\n{}", text, derived);
}

std::string explain(const ParsedArguments& parsed) {
  std::string out;
  const Schema& schema = parsed.schema ? *parsed.schema : arguments_schema();
  for (const Field& field : schema.fields()) {
    const auto source = parsed.sources.find(field.name);
    if (source == parsed.sources.end()) continue;
    out += fmt::format("{} = {}  ({})\n", field.name, printable(shown_value(field, &parsed.args)),
                       printable(source->second));
  }
  return out;
}

std::string to_json(const Arguments& args) {
  return to_json(arguments_schema(), &args);
}

Arguments arguments_from_json(std::string_view text, const std::string& where,
                              std::vector<std::string>* unknown) {
  Arguments args;
  std::vector<std::string> others = from_json(arguments_schema(), text, where, &args);
  if (unknown) *unknown = std::move(others);
  return args;
}

std::string arguments_help(const HelpOptions& options, std::span<const Field> extra_fields,
                           std::span<const ArgsDefault> defaults) {
  std::vector<Field> fields = extended_fields(extra_fields);
  for (Field& field : fields) field.group = heading_in(options.program, field.group);
  const std::shared_ptr<const Schema> schema = schema_of(std::move(fields));
  ParseResult result = program_defaults(*schema, defaults, {.program = options.program});
  if (!result.problems.empty()) throw UserError(ExitCode::config, std::move(result.problems));
  Arguments initial;
  apply(result, &initial);
  return help_text(*schema, options, &initial);
}

std::string arguments_document() {
  const Arguments defaults;
  return flags_document(arguments_schema(), &defaults);
}

}  // namespace teratron
