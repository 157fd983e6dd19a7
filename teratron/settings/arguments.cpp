#include "teratron/settings/arguments.h"

#include <algorithm>
#include <iterator>

#include "teratron/base/error.h"
#include "teratron/settings/config_file.h"

namespace teratron {

namespace {

std::string program_kind(std::string_view program) {
  for (const std::string_view word : {"generat", "serve", "logits"}) {
    if (program.find(word) != std::string_view::npos) return "generate";
  }
  for (const std::string_view word : {"bert", "t5"}) {
    if (program.find(word) != std::string_view::npos) return std::string(word);
  }
  return "gpt";
}

// Settings of the file that --config-file names, to be placed before the flags, which win.
Settings file_settings(const Schema& schema, const Settings& flags) {
  Settings settings;
  const Setting* file = nullptr;
  for (const Setting& setting : flags.values) {
    if (setting.field->name == "config_file") file = &setting;
  }
  if (file && std::holds_alternative<std::string>(file->value)) {
    const bool launched = process_environment("TERATRON_BACKEND").has_value();
    read_config_file({std::get<std::string>(file->value), file->where, schema, launched}, settings);
  }
  return settings;
}

void append(Settings& to, Settings&& from) {
  std::move(from.values.begin(), from.values.end(), std::back_inserter(to.values));
  std::move(from.problems.begin(), from.problems.end(), std::back_inserter(to.problems));
  std::move(from.notices.begin(), from.notices.end(), std::back_inserter(to.notices));
  std::move(from.unsettled.begin(), from.unsettled.end(), std::back_inserter(to.unsettled));
}

// A caller without a resolver must not lose a user's choice.
void refuse_architecture(const Settings& given) {
  for (const Setting& setting : given.values) {
    TERATRON_ASSERT(setting.field->name != "model_preset" && setting.field->name != "hf_config",
                    "ParseOptions::architecture is not set");
  }
}

// The program's table with a few rows more.
struct ExtendedSchema {
  explicit ExtendedSchema(std::vector<Field> all)
      : fields(std::move(all)),
        schema({.fields = fields,
                .old_flags = arguments_schema().old_flags(),
                .later_flags = arguments_schema().later_flags()}) {}
  std::vector<Field> fields;
  Schema schema;
};

std::shared_ptr<const Schema> extended_schema(std::span<const Field> own_fields) {
  const std::span<const Field> known = arguments_schema().fields();
  std::vector<Field> all(known.begin(), known.end());
  all.insert(all.end(), own_fields.begin(), own_fields.end());
  const auto extended = std::make_shared<const ExtendedSchema>(std::move(all));
  return {extended, &extended->schema};
}

}  // namespace

ParsedArguments parse_arguments(std::string_view program, std::span<const std::string> args,
                                const ParseOptions& options) {
  ParsedArguments parsed{.program = program_kind(program)};
  if (!options.own_fields.empty()) parsed.schema = extended_schema(options.own_fields);
  const Schema& schema = parsed.schema ? *parsed.schema : arguments_schema();
  Settings flags;
  read_flags(schema, args, flags);
  parsed.help = flags.help;
  if (parsed.help) return parsed;
  // From weakest to strongest: a named architecture, the environment, the file, the flags.
  Settings given;
  read_accelerate_environment(process_environment, given);
  append(given, file_settings(schema, flags));
  append(given, std::move(flags));
  Settings settings;
  if (options.architecture) {
    settings = options.architecture(schema, given);
  } else {
    refuse_architecture(given);
  }
  append(settings, std::move(given));
  const ReviewOptions review_options{.program = parsed.program, .refuse_planned = options.refuse_planned};
  review(schema, &parsed.args, review_options, settings);
  if (!settings.problems.empty() && !options.defer_problems) {
    throw UserError(ExitCode::config, std::move(settings.problems));
  }
  parsed.sources = apply(settings, &parsed.args);
  parsed.notices = std::move(settings.notices);
  parsed.problems = std::move(settings.problems);
  parsed.unsettled = std::move(settings.unsettled);
  return parsed;
}

std::string dump(const Arguments& args) {
  return dump(arguments_schema(), &args);
}

std::string dump(const ParsedArguments& parsed) {
  return dump(parsed.schema ? *parsed.schema : arguments_schema(), &parsed.args);
}

std::string explain(const ParsedArguments& parsed) {
  std::string out;
  for (const Field& field : arguments_schema().fields()) {
    const auto source = parsed.sources.find(field.name);
    if (source == parsed.sources.end()) continue;
    out += fmt::format("{} = {}  ({})\n", field.name, printable(python_text(get_value(field, &parsed.args))),
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

std::string arguments_help(std::string_view usage, std::span<const Field> own_fields) {
  const Arguments defaults;
  if (own_fields.empty()) return help_text(arguments_schema(), usage, &defaults);
  return help_text(*extended_schema(own_fields), usage, &defaults);
}

std::string arguments_document() {
  const Arguments defaults;
  return flags_document(arguments_schema(), &defaults);
}

}  // namespace teratron
