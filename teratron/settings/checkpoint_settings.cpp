#include "teratron/settings/checkpoint_settings.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/settings/model_fields.h"

namespace teratron {

namespace {

// The newest whose manifest can be read; loading will say what is wrong with the others.
std::optional<CheckpointInfo> newest_readable(const Arguments& args) {
  for (const std::filesystem::path& path : newest_first(*args.load)) {
    try {
      CheckpointInfo info = open_checkpoint(path);
      if (!args.ckpt_step || info.iteration == *args.ckpt_step) return info;
    } catch (const DamagedCheckpoint&) {
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace

void use_checkpoint_args(ParsedArguments& parsed) {
  if (!parsed.args.use_checkpoint_args || !parsed.args.load) return;
  const std::optional<CheckpointInfo> info = newest_readable(parsed.args);
  if (!info) return;
  std::vector<std::string> unknown;
  const Arguments saved = arguments_from_json(info->config, info->path.string(), &unknown);
  std::vector<std::string> names = model_fields();
  names.insert(names.end(), {"tokenizer_type", "seq_length"});
  std::vector<std::string> taken;
  for (const std::string& name : names) {
    const Schema::Target* target = arguments_schema().find(name);
    if (!target || !target->field || parsed.sources.contains(name)) continue;
    const Value value = get_value(*target->field, &saved);
    if (value == get_value(*target->field, &parsed.args)) continue;
    set_value(*target->field, value, &parsed.args);
    parsed.sources[name] = "checkpoint";
    taken.push_back(fmt::format("{}={}", name, printable(python_text(value))));
  }
  if (taken.empty()) return;
  parsed.notices.push_back(
      fmt::format("taken from {}: {}", printable(info->path.string(), 4096), fmt::join(taken, " ")));
}

std::vector<std::string> resume_notices(const std::string& saved, const std::string& current) {
  static constexpr const char* names[] = {"seed",
                                          "hidden_dropout",
                                          "attention_dropout",
                                          "data_path",
                                          "train_data_path",
                                          "split",
                                          "seq_length",
                                          "mock_data",
                                          "dataloader_type",
                                          "data_sharding",
                                          "eod_mask_loss",
                                          "clip_grad",
                                          "weight_decay",
                                          "adam_beta1",
                                          "adam_beta2",
                                          "reset_position_ids",
                                          "sgd_momentum",
                                          "rampup_batch_size",
                                          "global_batch_size"};
  const nlohmann::json before = nlohmann::json::parse(saved);
  const nlohmann::json now = nlohmann::json::parse(current);
  std::vector<std::string> lines;
  for (const char* name : names) {
    if (!before.contains(name) || !now.contains(name) || before[name] == now[name]) continue;
    lines.push_back(
        fmt::format("{} is {} now and was {} when the checkpoint was saved: the training goes on with other "
                    "numbers than an unbroken run",
                    name, printable(now[name].dump()), printable(before[name].dump())));
  }
  return lines;
}

}  // namespace teratron
