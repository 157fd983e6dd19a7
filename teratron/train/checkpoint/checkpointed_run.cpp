#include "teratron/train/checkpoint/checkpointed_run.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/settings/checkpoint_args.h"

namespace teratron {

std::string checkpoint_config(const Arguments& args, const Family& family, const EngineOptions& options) {
  nlohmann::json config = nlohmann::json::parse(to_json(args));
  config.update(nlohmann::json::parse(family_settings(family)));
  config["model_family"] = family.name;
  config["tokenizer_vocab_size"] = options.model.vocabulary;
  if (options.lora) {
    config["lora_rank"] = options.lora->rank;
    config["lora_alpha"] = options.lora->alpha;
    config["lora_targets"] = options.lora->targets;
  }
  // The checkpoint may be read from another working directory.
  for (const char* const file : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (!config.contains(file) || !config[file].is_string()) continue;
    config[file] = std::filesystem::absolute(config[file].get<std::string>()).lexically_normal().string();
  }
  return config.dump();
}

}  // namespace teratron
