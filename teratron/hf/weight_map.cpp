#include "teratron/hf/weight_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "teratron/base/config/python_json.h"
#include "teratron/base/json.h"
#include "teratron/hf/neutral_keys.h"
#include "teratron/models/family_formats.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using nlohmann::json;

namespace {

// Calls `use(row, config)` where the row's key is one of `config.keys`: inside the objects that a dotted key
// names.
template <typename Use>
void in_object(HfKey row, HfConfig& config, const Use& use) {
  const size_t dot = row.key.find('.');
  if (dot == row.key.npos) return use(row, config);
  const std::string name(row.key.substr(0, dot));
  row.key.remove_prefix(dot + 1);
  json inner = config.has(name) ? config.keys[name] : json::object();
  if (!inner.is_object()) return config.problem("'{}{}' is not an object", config.object, name);
  std::swap(config.keys, inner);
  const std::string outer = std::exchange(config.object, config.object + name + ".");
  in_object(row, config, use);
  config.object = outer;
  std::swap(config.keys, inner);
  if (!inner.empty()) config.keys[name] = std::move(inner);
}

void read_key(const HfKey& row, HfConfig& config) {
  const auto& [key, setting, options] = row;
  if (options.read) return options.read(key, config);
  if (options.export_only) return;
  json otherwise = options.must_be.is_null() ? options.otherwise : options.must_be;
  if (!options.derived.empty()) {
    otherwise = hf_size(config.settings, options.derived);
    if (otherwise == 0 && !config.has(key)) config.problem("{} is not a whole number", options.derived);
  }
  json value = key.empty() ? otherwise : config.get(key, otherwise);
  if (!options.must_be.is_null() && value != options.must_be) return config.unsupported(key);
  if (options.values.is_object()) {
    const auto found = options.values.find(value.get<std::string>());
    if (found == options.values.end()) return config.unsupported(key);
    value = *found;
  }
  if (options.negate) value = !value.get<bool>();
  if (setting.empty()) return;
  const auto [entry, is_new] = config.settings.emplace(setting, value);
  if (is_new || *entry == value) return;
  config.problem("'{}{}' = {} is not supported where {} is {}", config.object, key, value.dump(), setting,
                 entry->dump());
}

// The keys of the family's object, with what else config.json says of the whole model.
void enter_object(const HfFamily& family, HfConfig& config) {
  if (family.object.empty()) return;
  const auto found = config.keys.find(family.object);
  if (found == config.keys.end() || !found->is_object())
    return config.problem("'{}' is not an object", family.object);
  json inner = std::move(*found);
  for (const char* const key : {"tie_word_embeddings", "architectures"}) {
    if (config.has(key)) inner[key] = config.keys[key];
  }
  config.keys = std::move(inner);
  config.object = std::string(family.object) + ".";
}

// The keys as a configuration class of transformers has them: of a family or of one of its parts.
template <typename Class>
void complete_keys(const Class& family, json& keys) {
  for (const auto& [alias, key] : family.aliases) {
    const auto found = keys.find(alias);
    if (found == keys.end()) continue;
    keys[key] = *found;
    keys.erase(std::string(alias));
  }
  for (const auto& [key, value] : family.defaults.items()) keys.emplace(key, value);
}

template <typename Class>
void refuse_unknown_keys(const Class& family, HfConfig& config, std::set<std::string_view> known = {}) {
  known.insert(family.other_keys.begin(), family.other_keys.end());
  for (const HfKey& row : family.keys) known.insert(row.key.substr(0, row.key.find('.')));
  for (const auto& [key, value] : config.keys.items()) {
    if (known.contains(key) || is_neutral_key(key, value)) continue;
    config.problem("'{}{}' = {} is not supported", config.object, printable(key), printable(value.dump()));
  }
}

// Tied embeddings are those of the whole model or of its language model.
void read_part(const HfPart& part, HfConfig& config) {
  json inner = config.has(part.object) ? config.keys[part.object] : part.missing;
  if (!inner.is_object()) return config.problem("'{}' is not an object", part.object);
  constexpr const char* tie = "tie_word_embeddings";
  if (std::ranges::find(part.keys, tie, &HfKey::key) != part.keys.end() &&
      config.keys.value(tie, json()) == true)
    inner[tie] = true;
  std::swap(config.keys, inner);
  config.object = std::string(part.object) + ".";
  complete_keys(part, config.keys);
  refuse_unknown_keys(part, config);
  for (const HfKey& key : part.keys) in_object(key, config, read_key);
  config.object.clear();
  std::swap(config.keys, inner);
}

std::set<std::string_view> objects_of(const HfFamily& family) {
  std::set<std::string_view> objects;
  for (const HfPart& part : family.parts) objects.insert(part.object);
  return objects;
}

// What no flag takes either, such as a dropout of 3.
void check_ranges(const HfModel& model) {
  std::vector<std::string> unknown;
  arguments_from_json(model.settings.dump(), model.where, &unknown);
}

// A router that chooses more experts than there are would fail in every step.
void check_experts(const HfModel& model) {
  const int64_t experts = hf_size(model.settings, "num_experts");
  const int64_t chosen = model.settings.value("moe_router_topk", int64_t{0});
  if (experts == 0 || chosen <= experts) return;
  const auto key_of = [&](std::string_view setting) {
    return std::ranges::find(model.family->keys, setting, &HfKey::setting)->key;
  };
  throw config_error({.what = fmt::format("'{}' = {} is more than '{}' = {}", key_of("moe_router_topk"),
                                          chosen, key_of("num_experts"), experts),
                      .where = model.where,
                      .fix = "Correct config.json"});
}

void write_key(const HfKey& row, const CheckpointInfo& info, HfConfig& config) {
  const auto& [key, setting, options] = row;
  if (options.write) return options.write(key, config);
  if (!options.rows_of.empty()) {
    const auto found = info.tensors.find(std::string(options.rows_of));
    if (found == info.tensors.end() || found->second.shape.empty())
      return config.problem("tensor \"{}\" is missing", options.rows_of);
    config.settings[setting] = found->second.shape[0];
  }
  if (setting.empty()) return;
  const json& value = config.settings.at(setting);
  if (!options.must_be.is_null() && value != options.must_be)
    return config.problem("{} is {}, not {}", setting, printable(value.dump()), options.must_be.dump());
  if (key.empty()) return;
  if (value.is_null()) return config.problem("{} is not set", setting);
  json& written = config.keys[key] = options.otherwise.is_number_float() ? json(value.get<double>()) : value;
  if (options.negate) written = !value.get<bool>();
  if (!options.values.is_object()) return;
  const auto named = std::find(options.values.begin(), options.values.end(), value);
  if (named == options.values.end()) return config.problem("{} is {}", setting, value.dump());
  written = named.key();
}

bool has_architecture(const HfConfig& config, const std::string& name) {
  const auto names = config.keys.find("architectures");
  return names != config.keys.end() && names->is_array() && !names->empty() && names->front() == name;
}

// Empty if it says nothing.
std::string type_of_part(const HfPart& part, const json& keys) {
  const auto inner = keys.find(part.object);
  if (inner == keys.end() || !inner->is_object()) return "";
  const auto type = inner->find("model_type");
  return type == inner->end() || !type->is_string() ? "" : type->get<std::string>();
}

bool has_parts(const HfFamily& family, const json& keys) {
  return std::ranges::all_of(family.parts, [&keys](const HfPart& part) {
    const std::string type = type_of_part(part, keys);
    return type == part.model_type || (type.empty() && part.assumed);
  });
}

// None of the families of one model_type has the parts.
UserError unknown_parts(std::span<const HfFamily> families, const HfConfig& config,
                        const std::string& where) {
  const std::string type = config.keys.at("model_type");
  std::vector<std::string> found, known;
  for (const HfFamily& family : families) {
    if (type != family.model_type) continue;
    std::vector<std::string> parts;
    for (const HfPart& part : family.parts) {
      if (known.empty())
        found.push_back(fmt::format("{} '{}'", part.object, printable(type_of_part(part, config.keys))));
      parts.emplace_back(part.model_type);
    }
    known.push_back(fmt::format("{}", fmt::join(parts, " with ")));
  }
  return checkpoint_error(
      {.what = fmt::format("model_type '{}' with {} is not supported", type, fmt::join(found, " and ")),
       .where = where,
       .fix = fmt::format("Supported are {}", fmt::join(known, ", "))});
}

// The class of the model_type that config.json names, else the first of this type.
const HfFamily& family_of(HfConfig& config, std::span<const HfFamily> families, const std::string& where) {
  const std::string type = config.get("model_type", "");
  const HfFamily* first = nullptr;
  bool has_type = false;
  std::vector<std::string_view> known;
  for (const HfFamily& family : families) {
    if (std::ranges::find(known, family.model_type) == known.end()) known.push_back(family.model_type);
    if (type != family.model_type) continue;
    has_type = true;
    if (!has_parts(family, config.keys)) continue;
    if (has_architecture(config, family.architecture)) return family;
    if (!first) first = &family;
  }
  if (first) return *first;
  if (has_type) throw unknown_parts(families, config, where);
  for (const FamilyFormats& formats : family_formats()) {
    for (const auto& [refused, reason] : formats.refused_hf) {
      if (type == refused)
        throw checkpoint_error({.what = fmt::format("model_type '{}' is not supported: {}", type, reason),
                                .where = where,
                                .fix = "No setting here makes such a model: use another one"});
    }
  }
  throw checkpoint_error({.what = fmt::format("model_type '{}' is not supported", printable(type)),
                          .where = where,
                          .fix = fmt::format("Supported are {}", fmt::join(known, ", "))});
}

// The one that the weights came from first, if several have the settings.
std::vector<const HfFamily*> candidates_of(const json& config, std::span<const HfFamily> families) {
  const std::string trained = saved_family(config);
  std::vector<const HfFamily*> found;
  for (const HfFamily& family : families) {
    if (family.family == trained && family.object.empty()) found.push_back(&family);
  }
  const std::string origin = config.value("hf_model_type", "");
  std::ranges::stable_partition(found, [&](const HfFamily* one) { return one->model_type == origin; });
  return found;
}

}  // namespace

HfModel parse_hf_config(const std::string& text, const std::string& where,
                        std::span<const HfFamily> families) {
  HfConfig config{
      .keys = parse_json(without_bare_infinity(text), {.where = where, .kind = ExitCode::checkpoint})};
  if (!config.keys.is_object()) throw checkpoint_error({.what = "not a JSON object", .where = where});
  const HfFamily& family = family_of(config, families, where);
  enter_object(family, config);
  complete_keys(family, config.keys);
  refuse_unknown_keys(family, config, objects_of(family));
  for (const HfPart& part : family.parts) read_part(part, config);
  for (const HfKey& key : family.keys) in_object(key, config, read_key);
  if (config.problems.empty()) {
    HfModel model{&family, std::move(config.settings), {}, where};
    check_experts(model);
    check_ranges(model);
    return model;
  }
  std::vector<Problem> problems;
  for (const std::string& problem : config.problems) problems.push_back({problem, where, {}});
  problems.back().fix = "No setting here makes such a model: use another model, or correct config.json";
  throw UserError(ExitCode::checkpoint, std::move(problems));
}

HfModel hf_model_of(const CheckpointInfo& info, std::span<const HfFamily> families) {
  const std::string where = printable(info.path.string(), 4096);
  std::vector<std::string> unknown;
  const json settings = json::parse(to_json(arguments_from_json(info.config, where, &unknown)));
  const json saved = json::parse(info.config);
  std::map<size_t, std::vector<std::string>> refusals;  // by number of problems
  for (const HfFamily* const candidate : candidates_of(saved, families)) {
    const HfFamily& family = *candidate;
    HfConfig config{.settings = settings};
    const auto write = [&info](const HfKey& row, HfConfig& keys) { write_key(row, info, keys); };
    for (const HfPart& part : family.parts) {
      json own = {{"model_type", part.model_type}};
      std::swap(config.keys, own);
      for (const HfKey& key : part.keys) in_object(key, config, write);
      std::swap(config.keys, own);
      config.keys[part.object] = std::move(own);
    }
    for (const HfKey& key : family.keys) in_object(key, config, write);
    for (const HfTensorGroup& group : family.tensors) {
      const std::string first = in_layer(group.ours, 0) + std::string(group.rows[0].name);
      const bool in_first = !group.layers.empty() && group.span == HfLayers::all && group.after.empty() &&
                            group.rows[0].options.in.empty();
      if (in_first && !info.tensors.contains(first)) config.problem("tensor \"{}\" is missing", first);
    }
    const auto& problems = config.problems;
    if (problems.empty())
      return {&family, std::move(config.settings), std::move(config.keys), where, std::move(config.notices)};
    refusals[problems.size()].push_back(fmt::format("{} ({})", family.model_type, fmt::join(problems, "; ")));
  }
  if (refusals.empty())
    throw checkpoint_error(
        {.what = fmt::format("models of family '{}' have no form in transformers", saved_family(saved)),
         .where = where,
         .fix = "Use the checkpoint with the program that trained it"});
  throw checkpoint_error({.what = fmt::format("no Hugging Face model has these settings. Closest: {}",
                                              fmt::join(refusals.begin()->second, ", ")),
                          .where = where,
                          .fix = "Only models without what is in parentheses can be exported"});
}

json hf_config(const HfModel& model, Dtype dtype) {
  const char* const type = dtype == Dtype::bf16 ? "bfloat16" : dtype == Dtype::f16 ? "float16" : "float32";
  json config = {{"architectures", {model.family->architecture}},
                 {"model_type", model.family->model_type},
                 {"dtype", type},
                 {"torch_dtype", type}};
  config.update(model.keys);
  return config;
}

}  // namespace teratron
