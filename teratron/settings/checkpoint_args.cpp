#include "teratron/settings/checkpoint_args.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/strings.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/settings/attention_windows.h"
#include "teratron/settings/checks/validate.h"
#include "teratron/settings/own_run.h"

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
  if (a.add_bias_linear) a.add_attention_bias = false;                    // implied
  if (a.add_bias_linear || a.add_attention_bias) a.add_qkv_bias = false;  // implied
  if (a.openai_gelu) a.bias_gelu_fusion = true;  // both are the tanh approximation of GELU
  a.openai_gelu = false;
  if (a.rotary_seq_len_interpolation_factor == 1) a.rotary_seq_len_interpolation_factor.reset();
  canonicalize_windows(a);
  canonicalize_expert_layers(a);
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

UserError no_pretrained_checkpoint(const std::string& path) {
  return checkpoint_error(
      {.what = "no checkpoint found",
       .where = printable(path, 4096),
       .fix = "Correct --pretrained-checkpoint, or leave it out to start from random weights"});
}

namespace {

SavedSettings settings_of(const CheckpointInfo& info) {
  return {info.path.string(), info.config};
}

std::optional<SavedSettings> settings_in(const std::string& path, std::optional<int64_t> iteration,
                                         const OtherSettings& others) {
  if (const auto info = last_checkpoint(path, iteration)) return settings_of(*info);
  return others ? others(path, iteration) : std::nullopt;
}

// What the training starts from. With --fresh that may be the run that is put aside.
std::optional<SavedSettings> source_of_settings(const Arguments& args, const OtherSettings& others) {
  if (const std::optional<OwnRun> own = find_own_run(args); own && own->last) {
    if (!own->iteration) return settings_of(*own->last);
    return settings_in(*args.save, own->iteration, nullptr);
  }
  std::optional<SavedSettings> found;
  if (reads_load(args)) found = settings_in(*args.load, args.ckpt_step, others);
  if (!found && args.pretrained_checkpoint) {
    found = settings_in(*args.pretrained_checkpoint, std::nullopt, others);
    if (!found) throw no_pretrained_checkpoint(*args.pretrained_checkpoint);
  }
  if (!found && args.fresh && args.save) found = settings_in(*args.save, std::nullopt, nullptr);
  return found;
}

}  // namespace

bool wants_saved_settings(const Arguments& args) {
  return args.use_checkpoint_args || args.task;
}

std::optional<SavedSettings> read_saved_settings(const Arguments& args, const OtherSettings& others) {
  return wants_saved_settings(args) ? source_of_settings(args, others) : std::nullopt;
}

namespace {

bool is_given(const ParsedArguments& parsed, std::string_view name) {
  const auto source = parsed.sources.find(std::string(name));
  return (source != parsed.sources.end() && source->second != program_default_source) ||
         is_given_otherwise(name, parsed.sources);
}

// The names, unless the user gave one of them: they belong together.
void add_unless_given(const ParsedArguments& parsed, std::string_view together,
                      std::vector<std::string>& names) {
  const std::vector<std::string> group = split(together);
  if (std::ranges::none_of(group, [&](const std::string& name) { return is_given(parsed, name); }))
    names.insert(names.end(), group.begin(), group.end());
}

std::vector<std::string> taken_settings(const ParsedArguments& parsed) {
  std::vector<std::string> names = model_fields();
  // vocab_size: published models may have more embedding rows than their tokenizer has tokens.
  names.insert(names.end(), {"seq_length", "decoder_seq_length", "vocab_size"});
  if (!is_given(parsed, "tokenizer_type")) {
    add_unless_given(parsed, "vocab_file merge_file tokenizer_model", names);
    add_unless_given(parsed, "tiktoken_pattern tiktoken_num_special_tokens tokenizer_special_tokens", names);
    names.insert(names.end(), {"vocab_extra_ids", "tokenizer_type"});
  }
  if (!parsed.args.use_checkpoint_args || is_given(parsed, "bf16") || is_given(parsed, "fp16")) return names;
  add_unless_given(parsed, "bf16 fp16", names);
  add_unless_given(parsed,
                   "fp8 fp8_recipe fp8_margin fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad "
                   "fp8_output_proj first_last_layers_bf16 num_layers_at_start_in_bf16 "
                   "num_layers_at_end_in_bf16",
                   names);
  return names;
}

}  // namespace

void use_checkpoint_args(ParsedArguments& parsed, const SavedSettings& settings) {
  std::vector<std::string> unknown;
  const Arguments saved = arguments_from_json(settings.config, settings.path, &unknown);
  std::vector<std::string> taken;
  for (const std::string& name : taken_settings(parsed)) {
    const Schema::Target* target = arguments_schema().find(name);
    if (!target || !target->field || is_given(parsed, name)) continue;
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
      "bf16 fp16 fp8 fp8_recipe dataloader_type "
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
