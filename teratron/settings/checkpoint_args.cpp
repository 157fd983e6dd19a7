#include "teratron/settings/checkpoint_args.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/strings.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/settings/attention_windows.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

using nlohmann::json;

namespace {

void canonicalize_windows(Arguments& a) {
  if (!a.num_layers || !a.window_size || !is_valid_window_size(*a.window_size)) return;
  if (a.window_attn_skip_freq && !is_valid_window_pattern(*a.window_attn_skip_freq, *a.num_layers)) return;
  const std::vector<int64_t> windows =
      attention_windows({a.window_size, a.window_attn_skip_freq}, *a.num_layers);
  const int64_t widest = windows.empty() ? 0 : *std::ranges::max_element(windows);
  a.window_size.reset();
  a.window_attn_skip_freq.reset();
  if (widest == 0) return;
  a.window_size = fmt::format("{},0", widest - 1);  // causal: no key after the query
  if (std::ranges::find(windows, 0) == windows.end()) return;
  std::vector<int> windowed;
  for (const int64_t window : windows) windowed.push_back(window > 0 ? 1 : 0);
  a.window_attn_skip_freq = fmt::format("[{}]", fmt::join(windowed, ","));
}

void canonicalize_expert_layers(Arguments& a) {
  if (!a.num_experts || !a.num_layers || a.moe_layer_freq == "1") return;
  if (const auto layers = parse_layer_pattern(a.moe_layer_freq, *a.num_layers))
    a.moe_layer_freq = to_layer_pattern(*layers);
}

void canonicalize(Arguments& a) {
  if (a.num_query_groups == a.num_attention_heads) a.group_query_attention = false;
  if (a.add_bias_linear) a.add_qkv_bias = false;  // implied
  if (a.openai_gelu) a.bias_gelu_fusion = true;   // both are the tanh approximation of GELU
  a.openai_gelu = false;
  if (a.rotary_seq_len_interpolation_factor == 1) a.rotary_seq_len_interpolation_factor.reset();
  canonicalize_windows(a);
  canonicalize_expert_layers(a);
}

// The latest with a readable manifest; loading reports the errors of the others.
std::optional<CheckpointInfo> latest_readable(const Arguments& args) {
  for (const std::filesystem::path& path : list_checkpoints(*args.load)) {
    try {
      CheckpointInfo info = open_checkpoint(path);
      if (!args.ckpt_step || info.iteration == *args.ckpt_step) return info;
    } catch (const CorruptCheckpoint&) {
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace

const std::vector<std::string>& model_fields() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Field& field : arguments_schema().fields()) {
      if (field.model) out.emplace_back(field.name);
    }
    out.emplace_back("tokenizer_vocab_size");  // added by the checkpoint
    return out;
  }();
  return names;
}

std::string canonical_config(const std::string& config, const std::string& where) {
  std::vector<std::string> unknown;
  Arguments args = arguments_from_json(config, where, &unknown);
  canonicalize(args);
  const json canonical = json::parse(to_json(args));
  json settings = json::parse(config);
  for (const std::string& field : model_fields()) {
    if (settings.contains(field) && canonical.contains(field)) settings[field] = canonical[field];
  }
  for (const IgnoredSetting& ignored : ignored_settings(args, {})) {
    const Schema::Target* target = arguments_schema().find(ignored.name);
    if (target->field->model) settings.erase(ignored.name);
  }
  return settings.dump();
}

bool is_given_otherwise(std::string_view setting, const Sources& sources) {
  return setting == "seq_length" && sources.contains("encoder_seq_length");
}

std::vector<std::string> resumable_overrides(const std::string& config, bool finetune) {
  if (json::parse(config).value("position_embedding_type", "learned_absolute") == "learned_absolute")
    return {};
  if (!finetune) return {"max_position_embeddings"};
  return {"max_position_embeddings",
          "rotary_base",
          "rotary_seq_len_interpolation_factor",
          "use_rope_scaling",
          "rope_scaling_factor",
          "rope_scaling_original_max_position_embeddings",
          "rotary_scaling_factor",
          "mscale",
          "yarn_original_max_position_embeddings",
          "mscale_all_dim",
          "yarn_beta_fast",
          "yarn_beta_slow",
          "yarn_correction_range_round_to_int"};
}

std::vector<std::string> fixed_model_fields(const std::string& config, bool finetune) {
  std::vector<std::string> fields = model_fields();
  for (const std::string& free : resumable_overrides(config, finetune)) std::erase(fields, free);
  return fields;
}

namespace {

// A task takes them from what it is evaluated or finetuned on.
std::optional<CheckpointInfo> source_of_settings(const Arguments& args) {
  std::optional<CheckpointInfo> info;
  if (args.load) info = latest_readable(args);
  if (info || !args.task || !args.pretrained_checkpoint) return info;
  Arguments pretrained;
  pretrained.load = args.pretrained_checkpoint;
  return latest_readable(pretrained);
}

}  // namespace

bool wants_saved_settings(const Arguments& args) {
  return args.use_checkpoint_args || args.task;
}

std::optional<SavedSettings> read_saved_settings(const Arguments& args) {
  if (!wants_saved_settings(args)) return std::nullopt;
  const std::optional<CheckpointInfo> info = source_of_settings(args);
  if (!info) return std::nullopt;
  return SavedSettings{info->path.string(), info->config};
}

void use_checkpoint_args(ParsedArguments& parsed, const SavedSettings& settings) {
  std::vector<std::string> unknown;
  const Arguments saved = arguments_from_json(settings.config, settings.path, &unknown);
  std::vector<std::string> names = model_fields();
  // vocab_size: published models may have more embedding rows than their tokenizer has tokens.
  names.insert(names.end(), {"seq_length", "decoder_seq_length", "vocab_size"});
  const auto is_given = [&parsed](const std::string& name) {
    const auto source = parsed.sources.find(name);
    return (source != parsed.sources.end() && source->second != program_default_source) ||
           is_given_otherwise(name, parsed.sources);
  };
  if (parsed.args.task && !is_given("tokenizer_type"))
    names.insert(names.end(), {"vocab_file", "merge_file", "tokenizer_model"});
  names.emplace_back("tokenizer_type");
  std::vector<std::string> taken;
  for (const std::string& name : names) {
    const Schema::Target* target = arguments_schema().find(name);
    if (!target || !target->field || is_given(name)) continue;
    const Value value = get_value(*target->field, &saved);
    if (value == get_value(*target->field, &parsed.args)) continue;
    set_value(*target->field, value, &parsed.args);
    parsed.sources[name] = "checkpoint";
    taken.push_back(fmt::format("{}={}", name, printable(python_str(value))));
  }
  if (taken.empty()) return;
  parsed.notices.push_back(
      fmt::format("taken from {}: {}", printable(settings.path, 4096), fmt::join(taken, " ")));
}

std::vector<std::string> resume_notices(const std::string& saved, const std::string& current) {
  constexpr std::string_view names =
      "seed hidden_dropout attention_dropout data_path train_data_path split seq_length decoder_seq_length "
      "mock_data "
      "dataloader_type "
      "data_sharding eod_mask_loss clip_grad weight_decay adam_beta1 adam_beta2 reset_position_ids "
      "sgd_momentum "
      "rampup_batch_size global_batch_size mask_prob short_seq_prob";
  const json before = json::parse(saved);
  const json now = json::parse(current);
  std::vector<std::string> lines;
  for (const std::string& name : split(names)) {
    if (!before.contains(name) || !now.contains(name) || before[name] == now[name]) continue;
    lines.push_back(fmt::format(
        "{} is {}, but {} in the checkpoint: training continues, but differs from an uninterrupted run", name,
        printable(now[name].dump()), printable(before[name].dump())));
  }
  return lines;
}

}  // namespace teratron
