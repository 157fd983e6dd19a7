#include "teratron/hf/architecture.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/hf/weight_map.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"

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

HfModel read_folder(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return read_hf_model(path);
  throw config_error({.what = fmt::format("hf = '{}' is not a folder", printable(path)),
                      .where = "--hf",
                      .fix = "Give a local folder with config.json, the tokenizer's files and the weights; "
                             "`hf download NAME --local-dir DIR` fetches a published one"});
}

// A family trains its own models, and its classifier starts from them. Programs that train none take any.
void check_family(std::string_view program, const HfModel& model) {
  const std::string_view family = model.family->family;
  const auto& all = hf_families();
  if (family == program || fmt::format("{}_classifier", family) == program ||
      std::ranges::find(all, program, &HfFamily::family) == all.end())
    return;
  throw config_error(
      {.what = fmt::format("a model of type {} is not trained as {}", model.family->model_type, program),
       .where = model.where,
       .fix = fmt::format("Use `teratron pretrain {}`", family)});
}

bool names_tokenizer(const Arguments& given) {
  return given.tokenizer_type || given.tokenizer_model || given.vocab_file || given.merge_file;
}

// Mock data without a tokenizer has the model's vocabulary.
bool takes_vocabulary(const Arguments& given, const HfModel& model) {
  const bool brings_tokenizer = given.hf && model.settings.contains("tokenizer_type");
  return given.mock_data && !names_tokenizer(given) && !given.vocab_size && !brings_tokenizer;
}

// A model's file means its weights, which may have more embedding rows than the tokenizer has tokens; a
// preset is a shape to train, whose vocabulary is the tokenizer's. A NullTokenizer has the vocabulary it is
// given.
bool has_rows_of_model(const Arguments& given) {
  return (given.hf_config || given.hf) && given.tokenizer_type != "NullTokenizer";
}

bool is_tokenizer_setting(std::string_view name) {
  return name == "tokenizer_type" || name == "tokenizer_model" || name == "vocab_file" ||
         name == "merge_file";
}

void add_architecture(const Schema& schema, const HfModel& model, const Arguments& given,
                      const Sources& sources, ParseResult& settings) {
  const json defaults = json::parse(to_json(Arguments()));
  for (const auto& [name, value] : model.settings.items()) {
    std::vector<std::string> written;
    for (const json& one : value.is_array() ? value : json::array({value}))
      written.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    if (is_tokenizer_setting(name) && names_tokenizer(given)) continue;
    if (is_given_otherwise(name, sources)) continue;
    if (name == "vocab_size" && takes_vocabulary(given, model)) {
      written = {std::to_string(value.get<int64_t>() - 1)};  // NullTokenizer adds an end-of-document token
    } else if (name == "vocab_size" && !has_rows_of_model(given)) {
      continue;
    }
    if (value == defaults.at(name)) continue;
    add_option(schema, {.key = name, .values = written, .where = model.where}, settings);
  }
}

// Settings with which the weights of the folder would not fit, or compute something else.
void reject_contradictions(const ParseResult& given, const Sources& sources, ParseResult& settings) {
  Arguments theirs;
  apply(settings, &theirs);
  Arguments both = theirs;
  apply(given, &both);
  const json folder = json::parse(canonical_config(to_json(theirs), "--hf"));
  const json run = json::parse(canonical_config(to_json(both), "--hf"));
  const size_t before = settings.problems.size();
  for (const std::string& field : fixed_model_fields(to_json(both), /*finetune=*/true)) {
    const json ours = run.value(field, json()), expected = folder.value(field, json());
    if (ours == expected) continue;
    const auto source = sources.find(field);
    settings.problems.push_back({fmt::format("{} is {}, but {} in the folder of --hf", field,
                                             printable(ours.dump()), printable(expected.dump())),
                                 source == sources.end() ? flag_of(field) : source->second,
                                 {}});
  }
  if (settings.problems.size() > before)
    settings.problems.back().fix =
        "Leave these out, or use --hf-config in place of --hf, which takes no weights";
}

}  // namespace

bool is_model_preset(std::string_view name) {
  return std::ranges::any_of(presets, [name](const auto& preset) { return preset.first == name; });
}

ParseResult architecture_settings(std::string_view program, const Schema& schema, const ParseResult& given) {
  Arguments args;
  const Sources sources = apply(given, &args);
  ParseResult settings;
  const auto add = [&](const HfModel& model) {
    check_family(program, model);
    add_architecture(schema, model, args, sources, settings);
  };
  try {
    std::vector<std::string_view> chosen;
    for (const std::string_view name : {"model_preset", "hf_config", "hf"}) {
      if (sources.contains(std::string(name))) chosen.push_back(name);
    }
    if (chosen.size() > 1)
      throw config_error({fmt::format("{} are both set", fmt::join(chosen, " and ")),
                          sources.at(std::string(chosen.back())), "Set only one of them"});
    if (args.model_preset) {
      const std::string& where = sources.at("model_preset");
      const std::string text = preset_config(*args.model_preset, where);
      add(parse_hf_config(text, fmt::format("{} {}", where, *args.model_preset)));
    } else if (args.hf_config) {
      add(parse_hf_config(read_config(*args.hf_config), printable(*args.hf_config, 4096)));
    } else if (args.hf) {
      add(read_folder(*args.hf));
      reject_contradictions(given, sources, settings);
    }
  } catch (const UserError& error) {
    // What the model would have brought is not missing as well.
    for (const char* const name :
         {"model_preset", "num_layers", "hidden_size", "num_attention_heads", "seq_length",
          "decoder_seq_length", "max_position_embeddings", "vocab_size", "tokenizer_type", "tokenizer_model",
          "vocab_file", "merge_file"})
      settings.unresolved.emplace_back(name);
    settings.problems.insert(settings.problems.end(), error.problems().begin(), error.problems().end());
  }
  return settings;
}

}  // namespace teratron
