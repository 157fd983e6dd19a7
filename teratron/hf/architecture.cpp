#include "teratron/hf/architecture.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/hf/model.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using nlohmann::json;

namespace {

// Name, and config.json of the published model, without keys that do not change it.
constexpr std::pair<std::string_view, std::string_view> presets[] = {
#define PRESET(name, config) {name, config},
#include "teratron/hf/model_presets.def"
#undef PRESET
};

std::string preset_config(const std::string& name, const std::string& where) {
  std::vector<std::string_view> names;
  for (const auto& [known, config] : presets) {
    if (known == name) return std::string(config);
    names.push_back(known);
  }
  throw config_error({fmt::format("model_preset = '{}' is not known", printable(name)), where,
                      fmt::format("Use one of {}", fmt::join(names, ", "))});
}

// A file, or the folder that holds config.json.
std::string read_config(const std::string& path) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  return read_text(folder ? std::filesystem::path(path) / "config.json" : std::filesystem::path(path),
                   {.kind = ExitCode::config});
}

// A family trains its own models only; programs that train none take any.
void check_family(std::string_view program, const HfModel& model) {
  const std::string_view family = model.family->family;
  const auto& all = hf_families();
  if (family == program || std::ranges::find(all, program, &HfFamily::family) == all.end()) return;
  throw config_error(
      {.what = fmt::format("a model of type {} is not trained as {}", model.family->model_type, program),
       .where = model.where,
       .fix = fmt::format("Use `teratron pretrain {}`", family)});
}

// Mock data without a tokenizer has the model's vocabulary.
bool takes_vocabulary(const Arguments& given) {
  return given.mock_data && !given.tokenizer_type && !given.tokenizer_model && !given.vocab_file &&
         !given.merge_file && !given.vocab_size;
}

// A model's file means its weights, which may have more embedding rows than the tokenizer has tokens; a
// preset is a shape to train, whose vocabulary is the tokenizer's. A NullTokenizer has the vocabulary it is
// given.
bool has_rows_of_model(const Arguments& given) {
  return given.hf_config && given.tokenizer_type != "NullTokenizer";
}

void add_architecture(const Schema& schema, const HfModel& model, const Arguments& given,
                      ParseResult& settings) {
  const json defaults = json::parse(to_json(Arguments()));
  for (const auto& [name, value] : model.settings.items()) {
    std::string written = value.is_string() ? value.get<std::string>() : value.dump();
    if (name == "vocab_size" && takes_vocabulary(given)) {
      written = std::to_string(value.get<int64_t>() - 1);  // NullTokenizer adds an end-of-document token
    } else if (name == "vocab_size" && !has_rows_of_model(given)) {
      continue;
    }
    if (value == defaults.at(name)) continue;
    add_option(schema, {.key = name, .values = {written}, .where = model.where}, settings);
  }
}

}  // namespace

ParseResult architecture_settings(std::string_view program, const Schema& schema, const ParseResult& given) {
  Arguments args;
  const Sources sources = apply(given, &args);
  const auto& [preset, file] = std::tie(args.model_preset, args.hf_config);
  ParseResult settings;
  const auto add = [&](const HfModel& model) {
    check_family(program, model);
    add_architecture(schema, model, args, settings);
  };
  try {
    if (preset && file)
      throw config_error(
          {"model_preset and hf_config are both set", sources.at("hf_config"), "Set only one of them"});
    if (preset) {
      const std::string& where = sources.at("model_preset");
      const std::string text = preset_config(*preset, where);
      add(parse_hf_config(text, fmt::format("{} {}", where, *preset)));
    } else if (file) {
      add(parse_hf_config(read_config(*file), printable(*file, 4096)));
    }
  } catch (const UserError& error) {
    settings.problems.insert(settings.problems.end(), error.problems().begin(), error.problems().end());
  }
  return settings;
}

}  // namespace teratron
