#include "teratron/train/checkpoint/checkpointed_run.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/base/hash.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/settings/component_options.h"
#include "teratron/settings/own_run.h"
#include "teratron/tokenizer/build_tokenizer.h"

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

std::string tokenizer_hash(const Arguments& args) {
  TokenizerOptions options = tokenizer_options(args);
  options.vocab_size = 0;  // the model's, which may be larger; a setting of the model
  return hash_to_hex(hash_text(tokenizer_fingerprint(options)));
}

std::string with_identity(const std::string& config, const Arguments& args, bool finetunes) {
  nlohmann::json all = nlohmann::json::parse(config);
  all["tokenizer_hash"] = tokenizer_hash(args);
  if (finetunes) all["finetune"] = true;
  if (const std::string job = job_name(process_environment); !job.empty()) all["job"] = job;
  return all.dump();
}

}  // namespace teratron
