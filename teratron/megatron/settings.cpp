#include "teratron/megatron/settings.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/settings/arguments.h"

namespace teratron {

using nlohmann::json;

namespace {

// Arguments, of any release, of models that compute something else with these tensors.
constexpr std::string_view refused[] = {"activation_func_clamp_value",
                                        "enable_mhc_connections",
                                        "geglu",
                                        "glu_linear_offset",
                                        "heterogeneous_layers_config_encoded_json",
                                        "heterogeneous_layers_config_path",
                                        "moe_apply_probs_on_input",
                                        "moe_mlp_glu_interleave_size",
                                        "moe_shared_expert_glu_interleave_size",
                                        "mrope_section",
                                        "no_rope_freq",
                                        "qk_l2_norm",
                                        "quick_geglu",
                                        "retro_add_retriever",
                                        "use_mup",
                                        "use_rope_scaling",
                                        "window_size"};

// Arguments of hybrids.
constexpr std::string_view refused_of_others[] = {"hybrid_attention_ratio", "hybrid_layer_pattern",
                                                  "hybrid_mlp_ratio", "hybrid_override_pattern",
                                                  "is_hybrid_model"};

// Arguments of which one value is what the models here compute.
constexpr std::pair<std::string_view, std::string_view> only_values[] = {{"softmax_type", "vanilla"},
                                                                         {"rope_type", "rope"}};
constexpr std::string_view positions[] = {"learned_absolute", "rope", "relative", "none"};

void refuse_argument(const std::string& argument, const std::string& where) {
  throw checkpoint_error({.what = fmt::format("models with {} are not converted", argument),
                          .where = where,
                          .fix = "Only models without it are"});
}

// A fork may have what a flag here is called, and Megatron-LM has not.
void refuse_settings_of_forks(const PickleValue* args, const std::string& where) {
  for (const Field& field : arguments_schema().fields()) {
    if (field.model && field.since == "here" && !is_saved_argument(field.name) && has_value(args, field.name))
      refuse_argument(std::string(field.name), where);
  }
}

void check_arguments(const MegatronSource& source) {
  refuse_settings_of_forks(source.args, source.where);
  for (const std::string_view name : refused) {
    if (has_value(source.args, name)) refuse_argument(std::string(name), source.where);
  }
  for (const std::string_view name : refused_of_others) {
    if (source.model->family != "mamba" && has_value(source.args, name))
      refuse_argument(std::string(name), source.where);
  }
  const json variant = saved_arg(source.args, "experimental_attention_variant");
  if (!variant.is_null() && variant != "gdn" && variant != "gated_delta_net")
    refuse_argument(fmt::format("experimental_attention_variant = {}", printable(variant.dump(), 60)),
                    source.where);
  const auto require = [&](std::string_view name, std::span<const std::string_view> values) {
    const json saved = saved_arg(source.args, name);
    if (!saved.is_null() && std::ranges::none_of(values, [&](std::string_view one) { return saved == one; }))
      refuse_argument(fmt::format("{} = {}", name, printable(saved.dump(), 60)), source.where);
  };
  for (const auto& [name, value] : only_values) {
    const bool of_latents = name == "rope_type" && has_value(source.args, "multi_latent_attention");
    if (!of_latents) require(name, {&value, 1});  // these have both types
  }
  require("position_embedding_type", positions);
}

class Shapes {
 public:
  explicit Shapes(const MegatronSource& source) : source_(source) {}

  bool has(const std::string& name) const { return source_.shapes.contains(name); }
  int64_t size(const std::string& name, size_t dimension) const {
    const auto found = source_.shapes.find(name);
    if (found != source_.shapes.end() && dimension < found->second.size()) return found->second[dimension];
    throw checkpoint_error({.what = fmt::format("tensor \"{}\" is missing", name),
                            .where = source_.where,
                            .fix = whole_models_only()});
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw checkpoint_error(
        {.what = what, .where = source_.where, .fix = "Copy the folders mp_rank_* of all ranks"});
  }
  int64_t layers(const std::string& stack) const {
    int64_t count = 0;
    const auto has_layer = [&] {
      const std::string prefix = fmt::format("{}.layers.{}.", stack, count);
      const auto found = source_.shapes.lower_bound(prefix);
      return found != source_.shapes.end() && found->first.starts_with(prefix);
    };
    while (has_layer()) ++count;
    return count;
  }
  /// The beginning of the names of the first layer that has this tensor; empty: none does.
  std::string first_with(const std::string& stack, const char* tensor) const {
    for (int64_t i = 0; i < layers(stack); ++i) {
      const std::string layer = fmt::format("{}.layers.{}.", stack, i);
      if (has(layer + tensor)) return layer;
    }
    return "";
  }
  /// 1: the layer has experts.
  std::vector<int64_t> experts(const std::string& stack) const {
    std::vector<int64_t> found;
    for (int64_t layer = 0; layer < layers(stack); ++layer)
      found.push_back(has(fmt::format("{}.layers.{}.mlp.router.weight", stack, layer)) ? 1 : 0);
    return found;
  }

 private:
  const MegatronSource& source_;
};

// As many as the router chooses from, in each layer.
void check_number_of_experts(const Shapes& shapes, const std::string& layer) {
  const int64_t experts = shapes.size(layer + "router.weight", 0);
  const auto has = [&](int64_t expert) {
    return shapes.has(fmt::format("{}experts.{}.linear_fc1.weight", layer, expert));
  };
  int64_t found = 0;
  while (has(found)) ++found;
  if (found != experts)
    shapes.fail(fmt::format("the router of \"{}\" has {} experts, of which the files have {}", layer, experts,
                            found));
}

// Settings of the experts; returns where an MLP, or else an expert, is; empty: there is neither.
std::string take_experts(const Shapes& shapes, const std::string& stack, json& settings) {
  const std::vector<int64_t> experts = shapes.experts(stack);
  const std::string with_mlp = shapes.first_with(stack, "mlp.linear_fc1.weight");
  const std::string mlp = with_mlp.empty() ? "" : with_mlp + "mlp.";
  if (std::ranges::count(experts, 1) == 0) return mlp;
  const std::string layer = shapes.first_with(stack, "mlp.router.weight") + "mlp.";
  const std::string expert = layer + "experts.0.";
  for (size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] == 1) check_number_of_experts(shapes, fmt::format("{}.layers.{}.mlp.", stack, i));
  }
  if (!settings.contains("moe_router_topk"))
    throw config_error({.what = "the checkpoint does not say how many experts a token uses",
                        .where = layer + "router.weight",
                        .fix = "Give --moe-router-topk"});
  settings["num_experts"] = shapes.size(layer + "router.weight", 0);
  settings["moe_ffn_hidden_size"] = shapes.size(expert + "linear_fc2.weight", 1);
  settings["moe_router_enable_expert_bias"] = shapes.has(layer + "router.expert_bias");
  if (shapes.has(layer + "shared_experts.linear_fc2.weight"))
    settings["moe_shared_expert_intermediate_size"] =
        shapes.size(layer + "shared_experts.linear_fc2.weight", 1);
  settings["moe_shared_expert_gate"] = shapes.has(layer + "shared_experts.gate_weight");
  if (shapes.has(layer + "fc1_latent_proj.weight"))
    settings["moe_latent_size"] = shapes.size(layer + "fc1_latent_proj.weight", 0);
  const json given = settings.value("moe_layer_freq", json());
  const auto count = static_cast<int64_t>(experts.size());
  if (settings.contains("hybrid_layer_pattern")) {
    settings.erase("moe_layer_freq");  // the pattern says it
  } else if (!given.is_string() || parse_layer_pattern(given.get<std::string>(), count) != experts)
    settings["moe_layer_freq"] = to_layer_pattern(experts);
  return mlp.empty() ? expert : mlp;
}

// Multi-head latent attention.
void take_latents(const Shapes& shapes, const std::string& stack, json& settings) {
  const std::string layer = shapes.first_with(stack, "self_attention.linear_kv_down_proj.weight");
  if (layer.empty()) return;
  const std::string attention = layer + "self_attention.";
  const int64_t rank = shapes.size(attention + "linear_kv_up_proj.weight", 1);
  settings["multi_latent_attention"] = true;
  settings["kv_lora_rank"] = rank;
  settings["qk_pos_emb_head_dim"] = shapes.size(attention + "linear_kv_down_proj.weight", 0) - rank;
  settings["q_lora_rank"] = shapes.has(attention + "linear_q_down_proj.weight")
                                ? json(shapes.size(attention + "linear_q_down_proj.weight", 0))
                                : json();
  settings["qk_layernorm"] = shapes.has(attention + "kv_layernorm.weight");
}

// Core 0.10 to 0.12 multiply scores by m(mscale)^2, later ones by m(mscale_all_dim)^2, m(s) = 1 + 0.1 s
// ln(factor); all multiply queries and keys by m(mscale) / m(mscale_all_dim). Arguments of later ones have
// no_rope_freq; those of 0.10 have neither scale, of which its models have 0.707.
void take_early_mscale(const MegatronSource& source, json& settings) {
  if (source.args == nullptr || source.args->find("no_rope_freq") != nullptr ||
      !is_true(saved_arg(source.args, "multi_latent_attention")))
    return;
  const bool has_scales = source.args->find("mscale") != nullptr;
  const double factor = settings.value("rotary_scaling_factor", 1.0);
  const double mscale = has_scales ? settings.value("mscale", 1.0) : 0.707;
  const double all_dim = has_scales ? settings.value("mscale_all_dim", 1.0) : 0.707;
  if (factor <= 1.0) return;
  const auto magnitude = [&](double scale) { return 0.1 * scale * std::log(factor) + 1.0; };
  const double of_queries = magnitude(mscale) * magnitude(mscale) / magnitude(all_dim);
  settings["mscale"] = mscale == all_dim ? mscale : (of_queries - 1.0) / (0.1 * std::log(factor));
  settings["mscale_all_dim"] = mscale;
}

// What the tensors themselves show; where they and saved arguments or flags disagree, the tensors are right
// or it is an error.
void take_shapes(const MegatronSource& source, json& settings) {
  const Shapes shapes(source);
  const std::string stack(source.model->stacks[0].ours);
  const std::string attention = shapes.first_with(stack, "self_attention.linear_qkv.weight");
  const int64_t hidden = shapes.size("embedding.word_embeddings.weight", 1);
  const std::string mlp = take_experts(shapes, stack, settings);
  take_latents(shapes, stack, settings);
  settings.update({{"num_layers", shapes.layers(stack)}, {"hidden_size", hidden}});
  int64_t depths = 0;
  while (shapes.has(fmt::format("mtp.layers.{}.eh_proj.weight", depths))) ++depths;
  settings["mtp_num_layers"] = depths > 0 ? json(depths) : json();
  settings["swiglu"] = false;
  if (!mlp.empty()) {
    const int64_t ffn = shapes.size(mlp + "linear_fc2.weight", 1);
    settings["ffn_hidden_size"] = ffn;
    settings["swiglu"] = shapes.size(mlp + "linear_fc1.weight", 0) == 2 * ffn;
  }
  if (source.model->stacks.size() > 1) {
    for (const MegatronStack& each : source.model->stacks) {
      const std::string name(each.ours);
      settings[name + "_num_layers"] = shapes.layers(name);
    }
  }
  const std::string relative_bias = "encoder_relative_pos_emb.relative_attention_bias.weight";
  settings["add_bias_linear"] = attention.empty() ? !mlp.empty() && shapes.has(mlp + "linear_fc1.bias")
                                                  : shapes.has(attention + "self_attention.linear_proj.bias");
  settings["add_qkv_bias"] = !attention.empty() && shapes.has(attention + "self_attention.linear_qkv.bias") &&
                             settings["add_bias_linear"] == false;
  const std::string norm = fmt::format("{}.{}", stack, source.model->stacks[0].final_norm);
  settings["normalization"] =
      shapes.has(norm + ".bias") || (!attention.empty() && shapes.has(attention + "input_layernorm.bias"))
          ? "LayerNorm"
          : "RMSNorm";
  if (shapes.has("embedding.position_embeddings.weight")) {
    settings["position_embedding_type"] = "learned_absolute";
    settings["max_position_embeddings"] = shapes.size("embedding.position_embeddings.weight", 0);
  } else if (shapes.has(relative_bias)) {
    settings["position_embedding_type"] = "relative";
    settings["relative_attention_num_buckets"] = shapes.size(relative_bias, 0);
  } else if (!settings.contains("position_embedding_type")) {
    settings["position_embedding_type"] = "rope";
  } else if (settings["position_embedding_type"] == "learned_absolute") {
    settings["position_embedding_type"] = "none";  // --no-position-embedding
  }
  if (!settings.contains("untie_embeddings_and_output_weights"))
    settings["untie_embeddings_and_output_weights"] =
        source.pipeline_ranks == 1 && shapes.has("output_layer.weight");
  for (const MegatronRow& row : source.model->heads) {
    if (!row.setting.empty()) settings[row.setting] = shapes.has(std::string(row.ours) + "weight");
  }
  if (!settings.contains("seq_length") && settings.contains("max_position_embeddings"))
    settings["seq_length"] = settings["max_position_embeddings"];
}

// NVIDIA's models of 345 million parameters, which are published without arguments.
bool is_published_345m(const MegatronSource& source, const json& settings) {
  return source.args == nullptr && settings["num_layers"] == 24 && settings["hidden_size"] == 1024 &&
         source.model->stacks.size() == 1;
}

int64_t whole(const MegatronSource& source, const json& settings, const char* name) {
  const json& value = settings[name];
  if (value.is_number_integer()) return value;
  throw checkpoint_error(
      {.what = fmt::format("{} = {} is not a whole number", name, printable(value.dump(), 60)),
       .where = source.where});
}

void take_heads(const MegatronSource& source, json& settings) {
  const std::string attention = Shapes(source).first_with(std::string(source.model->stacks[0].ours),
                                                          "self_attention.linear_qkv.weight");
  if (attention.empty()) return;
  if (!settings.contains("num_attention_heads") && is_published_345m(source, settings))
    settings["num_attention_heads"] = 16;
  if (!settings.contains("num_attention_heads"))
    throw config_error(
        {.what = "the checkpoint does not say how many attention heads the model has",
         .where = source.where,
         .fix = "Give --num-attention-heads (NVIDIA's models of 345 million parameters have 16)"});
  const int64_t heads = whole(source, settings, "num_attention_heads"), hidden = settings["hidden_size"];
  const json groups_given = settings.value("num_query_groups", json());
  const bool grouped = is_true(settings.value("group_query_attention", json()));
  if (heads < 1 || heads > hidden)
    throw config_error(
        {.what = fmt::format("{} heads for a width of {}", heads, hidden), .where = "--num-attention-heads"});
  if (!is_true(settings.value("kv_channels", json()))) settings["kv_channels"] = hidden / heads;
  const int64_t channels = whole(source, settings, "kv_channels");
  const int64_t groups = grouped && groups_given.is_number_integer() ? groups_given.get<int64_t>() : heads;
  const int64_t of_query = is_true(settings.value("attention_output_gate", json())) ? 2 : 1;  // and its gate
  const int64_t rows = Shapes(source).size(attention + "self_attention.linear_qkv.weight", 0);
  if (channels < 1 || channels > rows || groups < 1 || groups > heads ||
      rows != (of_query * heads + 2 * groups) * channels)
    throw config_error(
        {.what = fmt::format("QKV has {} rows; {} heads in {} groups of {} channels need {}", rows, heads,
                             groups, channels, (of_query * heads + 2 * groups) * channels),
         .where = source.where,
         .fix = "Correct --num-attention-heads, --num-query-groups (with --group-query-attention) or "
                "--kv-channels"});
}

// Layers whose experts have other names, or are stored by parts, would lose them.
void check_experts(const MegatronSource& source) {
  const auto has = [&source](std::string_view part) {
    return std::ranges::any_of(
        source.shapes, [part](const auto& tensor) { return tensor.first.find(part) != std::string::npos; });
  };
  if (is_true(saved_arg(source.args, "num_experts")) && !has(".mlp.experts.0.linear_fc1.weight"))
    throw checkpoint_error(
        {.what = "models with num_experts are not converted from this format",
         .where = source.where,
         .fix = "Save the model in format 'torch' (--ckpt-format torch, or --dist-ckpt-format torch)"});
  const json own = saved_arg(source.args, "expert_tensor_parallel_size");
  const json shared = saved_arg(source.args, "tensor_model_parallel_size");
  if (is_true(saved_arg(source.args, "num_experts")) && own.is_number_integer() &&
      shared.is_number_integer() && own != shared)
    throw checkpoint_error(
        {.what =
             fmt::format("experts with expert_tensor_parallel_size {} beside tensor_model_parallel_size {} "
                         "are not converted",
                         own.dump(), shared.dump()),
         .where = source.where,
         .fix = "Save the model with equal sizes"});
}

// The layers and the width of the arguments are those of the tensors, or the files are not of one model.
void check_sizes(const MegatronSource& source, const json& settings) {
  for (const char* const name : {"num_layers", "hidden_size"}) {
    const json saved = saved_arg(source.args, name);
    if (saved.is_null() || saved == settings[name]) continue;
    throw checkpoint_error({.what = fmt::format("{} is {} in the arguments, but the tensors show {}", name,
                                                printable(saved.dump(), 60), settings[name].dump()),
                            .where = source.where,
                            .fix = whole_models_only()});
  }
}

}  // namespace

json megatron_settings(const MegatronSource& source, const json& given, const json& otherwise) {
  check_arguments(source);
  check_experts(source);
  json settings = otherwise;
  settings.erase("untie_embeddings_and_output_weights");  // the shapes show it
  settings.update(saved_settings(source.args));
  take_early_mscale(source, settings);
  settings.update(given);
  take_recurrent_layers(source, settings);
  take_shapes(source, settings);
  take_heads(source, settings);
  std::vector<Problem> problems;
  for (const auto& [name, value] : given.items()) {
    if (settings.contains(name) && settings[name] != value)
      problems.push_back({.what = fmt::format("{} is {}, but the tensors show {}", name, value.dump(),
                                              settings[name].dump()),
                          .where = source.where,
                          .fix = "Leave the flag out"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  check_sizes(source, settings);
  std::vector<std::string> unknown;
  arguments_from_json(settings.dump(), source.where, &unknown);  // values that no flag takes
  settings["model_family"] = source.model->family;
  return settings;
}

int64_t saved_vocabulary(const PickleValue* args) {
  const json rows = saved_arg(args, "orig_vocab_size"), size = saved_arg(args, "vocab_size");
  if (rows.is_number_integer() && rows > 0) return rows;
  if (!size.is_number_integer() || size <= 0) return 0;
  // NullTokenizer's does not count its end of document.
  return size.get<int64_t>() + (saved_arg(args, "tokenizer_type") == "NullTokenizer" ? 1 : 0);
}

}  // namespace teratron
