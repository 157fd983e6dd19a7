#include "teratron/hf/architecture.h"

#include <filesystem>
#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/hf/config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

struct Preset {
  std::string_view name;
  std::string_view config;  // config.json of the published model, without keys that do not change it
};

constexpr Preset presets[] = {
#define PRESET(name, config) {name, config},
#include "teratron/hf/model_presets.def"
#undef PRESET
};

std::string preset_config(const Assignment& preset) {
  const std::string& name = std::get<std::string>(preset.value);
  std::vector<std::string_view> names;
  for (const Preset& known : presets) {
    if (known.name == name) return std::string(known.config);
    names.push_back(known.name);
  }
  throw config_error({fmt::format("model_preset = '{}' is not known", printable(name)), preset.where,
                      fmt::format("Use one of {}", fmt::join(names, ", "))});
}

// The last string given for a field.
const Assignment* last_text(const ParseResult& given, std::string_view field) {
  const Assignment* last = nullptr;
  for (const Assignment& setting : given.assignments) {
    if (setting.field->name == field && std::holds_alternative<std::string>(setting.value)) last = &setting;
  }
  return last;
}

// A file, or the folder that holds config.json.
std::string read_config(const std::string& path) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  return read_text(folder ? std::filesystem::path(path) / "config.json" : std::filesystem::path(path),
                   {.kind = ExitCode::config});
}

void add_architecture(const Schema& schema, const std::string& text, const std::string& where,
                      ParseResult& settings) {
  const Arguments defaults;
  const HfModel model = parse_hf_config(text, where);
  for (const auto& [name, value] : model.settings.items()) {
    if (name == "vocab_size") continue;
    const std::string written = value.is_string() ? value.get<std::string>() : value.dump();
    add_option(schema, {.key = name, .values = {written}, .where = where}, settings);
    const bool is_default = !settings.assignments.empty() &&
                            settings.assignments.back().field->name == name &&
                            settings.assignments.back().value == get_value(schema.field(name), &defaults);
    if (is_default) settings.assignments.pop_back();
  }
}

}  // namespace

ParseResult architecture_settings(const Schema& schema, const ParseResult& given) {
  ParseResult settings;
  const Assignment* const preset = last_text(given, "model_preset");
  const Assignment* const file = last_text(given, "hf_config");
  try {
    if (preset && file) {
      throw config_error({"model_preset and hf_config are both set", file->where, "Set only one of them"});
    } else if (preset) {
      const std::string where = fmt::format("{} {}", preset->where, std::get<std::string>(preset->value));
      add_architecture(schema, preset_config(*preset), where, settings);
    } else if (file) {
      const std::string& path = std::get<std::string>(file->value);
      add_architecture(schema, read_config(path), printable(path, 4096), settings);
    }
  } catch (const UserError& error) {
    settings.problems.insert(settings.problems.end(), error.problems().begin(), error.problems().end());
  }
  return settings;
}

}  // namespace teratron
