// adapter_config.json.
#include <algorithm>
#include <cmath>
#include <set>

#include "teratron/base/json.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/neutral_keys.h"
#include "teratron/hf/peft.h"
#include "teratron/hf/peft_layout.h"
#include "teratron/models/lora_names.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace peft;

namespace {

// What read_peft_config reads, what the names of the weights say, and what changes no weight.
constexpr std::string_view known_fields[] = {"peft_type",      "r",
                                             "lora_alpha",     "lora_dropout",
                                             "use_rslora",     "target_modules",
                                             "task_type",      "auto_mapping",
                                             "peft_version",   "base_model_name_or_path",
                                             "revision",       "inference_mode",
                                             "fan_in_fan_out", "exclude_modules",
                                             "layers_pattern", "megatron_core",
                                             "runtime_config", "qalora_group_size",
                                             "eva_config"};

// Initialisations that leave the model's weights as they are. The others subtract the adapter's beginning.
constexpr std::string_view neutral_initialisations[] = {"gaussian", "eva", "orthogonal", "mica"};

bool is_plain(std::string_view field, const json& value) {
  const auto is_in = [](std::string_view one, const auto& names) {
    return std::ranges::find(names, one) != std::end(names);
  };
  if (field == "layers_to_transform") return value.is_null() || value == json::array();  // 0: the first layer
  if (!has_value(value)) return true;
  if (field == "bias") return value == "none";
  if (field == "init_lora_weights")
    return value == true ||
           (value.is_string() && is_in(value.get_ref<const std::string&>(), neutral_initialisations));
  return is_in(field, known_fields);
}

void check_plain(const json& config, const fs::path& path) {
  if (setting(config, "peft_type", std::string()) != "LORA")
    throw refuse("the adapter is not LoRA", path, "Use an adapter with peft_type LORA");
  for (const auto& [field, value] : config.items()) {
    if (!is_plain(field, value))
      throw refuse(
          fmt::format("{} is {}, which is not supported", printable(field, 60), printable(value.dump(), 60)),
          path, "Use an adapter of plain LoRA on linear layers, or merge it with PEFT");
  }
}

int64_t rank_of(const json& config, const fs::path& path) {
  const json rank = setting(config, "r", json(8));
  if (rank.is_number_integer() && rank >= 1 && rank <= int64_t{1} << 31) return rank;
  throw refuse(fmt::format("r = {} is not a rank", printable(rank.dump(), 60)), path,
               "Use a whole number of 1 or more");
}

// What the adapters' names say.
std::vector<std::string> targets_of(const fs::path& path) {
  std::set<std::string> targets;
  const SafetensorsFile file(path);
  for (const SafetensorsEntry& entry : file.entries()) {
    const std::string_view name = entry.name;
    const size_t end = name.rfind(".lora_");
    const std::string target = lora_target(name.substr(0, end == name.npos ? name.size() : end));
    if (target.empty() || end == name.npos)
      throw refuse(fmt::format("\"{}\" is not the adapter of a known linear layer", printable(name)), path,
                   "Train adapters of the attention's and MLP's linear layers");
    targets.insert(target);
  }
  return {targets.begin(), targets.end()};
}

}  // namespace

PeftConfig read_peft_config(const fs::path& folder) {
  const fs::path path = folder / config_file;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw config_error({.what = "the folder has no adapter_config.json",
                        .where = printable(folder.string(), 4096),
                        .fix = "Name one that PEFT or --lora-out wrote"});
  }
  const json config = read_json(path, {.where = "", .kind = ExitCode::checkpoint});
  if (!config.is_object())
    throw refuse("the file is not a JSON object", path, "Give a folder that PEFT wrote");
  try {
    check_plain(config, path);
    PeftConfig result{.rank = rank_of(config, path),
                      .alpha = setting(config, "lora_alpha", 8.0),
                      .dropout = setting(config, "lora_dropout", 0.0)};
    if (!std::isfinite(result.alpha)) throw refuse("lora_alpha is not a number", path, "Correct it");
    if (setting(config, "use_rslora", false)) result.alpha *= std::sqrt(static_cast<double>(result.rank));
    result.targets = targets_of(folder / weight_file);
    return result;
  } catch (const json::exception&) {
    throw refuse("r, lora_alpha, lora_dropout, use_rslora or peft_type is not of its type", path,
                 "Give a folder that PEFT wrote");
  }
}

}  // namespace teratron
