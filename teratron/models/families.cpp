#include <algorithm>
#include <iterator>
#include <mutex>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/models/family.h"

namespace teratron {

#define TERATRON_FAMILY(name) Family name##_family();
#include "teratron/models/families.def"
#undef TERATRON_FAMILY

std::span<const Family> families() {
#define TERATRON_FAMILY(name) name##_family(),
  static const std::vector<Family> all = {
#include "teratron/models/families.def"
  };
#undef TERATRON_FAMILY
  return all;
}

FamilyField::FamilyField(const Field& field)
    : Field(field),
      initial(field.storage ? to_json(Schema({.fields = std::span(&field, 1)}), nullptr) : "{}") {}

Program training_of(const Family& family) {
  Program program = family.settings;
  ProgramNames& names = program.names;
  const auto add = [&names](std::string_view name) {
    if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  };
  std::erase(names, family.name);  // is the first
  names.emplace(names.begin(), family.name);
  const ProgramNames& chosen = family.settings.names;
  const bool names_families = std::ranges::any_of(chosen, [&](const std::string& name) {
    return name == family.name || std::ranges::find(families(), name, &Family::name) != families().end();
  });
  if (names_families) return program;
  for (const Family& each : families()) add(each.name);
  add("training");
  return program;
}

Problem no_experts() {
  return {
      .what = "only layers of gpt and mamba have experts", .where = "--num-experts", .fix = "Leave it out"};
}

DataSources data_sources(const DataRequest& request) {
  const Arguments& args = request.args;
  DataSources sources{
      .data_path = args.data_args_path ? read_data_args(*args.data_args_path) : args.data_path,
      .split = args.split.value_or("969, 30, 1"),
      .split_data_path = {args.train_data_path, args.valid_data_path, args.test_data_path},
      .mock_data = args.mock_data,
      .samples = request.samples,
      .surplus = args.mid_level_dataset_surplus,
      .warm_up = args.mmap_warmup};
  if (args.per_split_data_args_path)
    sources.split_data_path = read_per_split_data_args(*args.per_split_data_args_path);
  return sources;
}

IndexCache index_cache(const DataRequest& request) {
  const Arguments& args = request.args;
  if (args.data_cache_path) return {IndexCache::Place::folder, *args.data_cache_path, request.stop};
  return {IndexCache::Place::near_data, args.save ? *args.save + "/index_cache" : "", request.stop};
}

const Family& find_saved_family(std::string_view name, std::span<const Family> more) {
  static const std::vector<Family> classifiers = [] {
    std::vector<Family> all;
    for (const Family& family : families()) {
      if (family.classifier) all.push_back(family.classifier());
    }
    return all;
  }();
  if (const auto own = std::ranges::find(more, name, &Family::name); own != more.end()) return *own;
  const auto classifier = std::ranges::find(classifiers, name, &Family::name);
  return classifier == classifiers.end() ? find_family(name, more) : *classifier;
}

const Family& find_family(std::string_view name, std::span<const Family> more) {
  std::vector<std::string_view> names;
  for (const std::span<const Family> list : {more, families()}) {
    for (const Family& family : list) {
      if (family.name == name) return family;
      names.push_back(family.name);
    }
  }
  throw config_error(
      {.what = name.empty() ? std::string("no model given")
                            : fmt::format("'{}' is not a known model", printable(std::string(name), 40)),
       .where = "command",
       .fix = fmt::format("Use one of: {}", fmt::join(names, ", "))});
}

namespace {

// Rows of the table that a family changes are settings like others.
std::vector<Field> own_fields(const Family& family) {
  std::vector<Field> own;
  std::ranges::copy_if(family.fields, std::back_inserter(own), &Field::storage);
  return own;
}

}  // namespace

std::string family_settings(const Family& family) {
  const std::vector<Field> fields = own_fields(family);
  return to_json(Schema({.fields = fields}), nullptr);
}

std::vector<std::string> read_family_settings(const Family& family, const std::string& config,
                                              const std::string& where, const Sources& given) {
  using nlohmann::json;
  static std::mutex mutex;  // lint: allow(global-state): orders threads that write the values of one program
  const std::lock_guard lock(mutex);
  const json saved = json::parse(config), current = json::parse(family_settings(family));
  std::vector<std::string> taken;
  json changed = json::object();  // the first thread writes, the others only read
  for (const FamilyField& field : family.fields) {
    if (!field.storage || given.contains(field.name)) continue;
    const std::string name(field.name);
    const json initial = json::parse(field.initial).at(name), value = saved.value(name, initial);
    if (value != initial) taken.push_back(name);
    if (value != current.at(name)) changed[name] = value;
  }
  const std::vector<Field> fields = own_fields(family);
  if (!changed.empty()) from_json(Schema({.fields = fields}), changed.dump(), where, nullptr);
  return taken;
}

}  // namespace teratron
