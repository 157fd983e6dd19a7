#include "teratron/megatron/settings.h"

#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/megatron/structure.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

// Taken over under the same name.
constexpr const char* taken_over[] = {"num_attention_heads",
                                      "kv_channels",
                                      "seq_length",
                                      "max_position_embeddings",
                                      "position_embedding_type",
                                      "relative_attention_num_buckets",
                                      "relative_attention_max_distance",
                                      "rotary_percent",
                                      "rotary_base",
                                      "rotary_interleaved",
                                      "rotary_seq_len_interpolation_factor",
                                      "add_bias_linear",
                                      "add_qkv_bias",
                                      "squared_relu",
                                      "openai_gelu",
                                      "bias_gelu_fusion",
                                      "normalization",
                                      "norm_epsilon",
                                      "apply_layernorm_1p",
                                      "apply_residual_connection_post_layernorm",
                                      "untie_embeddings_and_output_weights",
                                      "bert_binary_head",
                                      "attention_dropout",
                                      "hidden_dropout",
                                      "init_method_std",
                                      "qk_layernorm",
                                      "make_vocab_size_divisible_by",
                                      "decoder_seq_length"};

// The same, of models with experts.
constexpr const char* taken_over_of_experts[] = {"moe_router_topk",
                                                 "moe_router_score_function",
                                                 "moe_router_pre_softmax",
                                                 "moe_router_topk_scaling_factor",
                                                 "moe_router_num_groups",
                                                 "moe_router_group_topk",
                                                 "moe_router_bias_update_rate",
                                                 "moe_router_dtype",
                                                 "moe_router_load_balancing_type",
                                                 "moe_aux_loss_coeff",
                                                 "moe_z_loss_coeff",
                                                 "moe_input_jitter_eps",
                                                 "moe_expert_capacity_factor",
                                                 "moe_token_drop_policy",
                                                 "moe_pad_expert_input_to_capacity"};

// Models that a conversion of these tensors would change.
constexpr const char* refused[] = {"multi_latent_attention", "retro_add_retriever",
                                   "heterogeneous_layers_config_path", "use_rope_scaling"};

json value_of(const PickleValue& value) {
  if (value.is(Kind::boolean)) return value.integer != 0;
  if (value.is(Kind::integer)) return value.integer;
  if (value.is(Kind::real)) return value.real;
  if (value.is(Kind::text)) return value.text;
  return nullptr;
}

// null without it.
json saved(const PickleValue* args, std::string_view name) {
  const PickleValue* const value = args == nullptr ? nullptr : args->find(name);
  return value == nullptr ? json() : value_of(*value);
}

bool is_true(const json& value) {
  return !value.is_null() && value != false && value != 0;
}

void take_saved_of_experts(const PickleValue& args, json& settings) {
  for (const char* name : taken_over_of_experts) {
    const PickleValue* const found = args.find(name);
    json value = found == nullptr ? json() : plain_json(*found);
    if (value.is_null()) continue;
    const bool one_of_list = std::string_view(name) == "moe_router_load_balancing_type" ||
                             std::string_view(name) == "moe_aux_loss_coeff";
    settings[name] = one_of_list && !value.is_array() ? json::array({value}) : value;
  }
}

void take_saved(const PickleValue* args, json& settings) {
  for (const char* name : taken_over) {
    if (const json value = saved(args, name); !value.is_null()) settings[name] = value;
  }
  if (is_true(saved(args, "num_experts"))) take_saved_of_experts(*args, settings);
  // Names of earlier releases.
  if (const json old = saved(args, "layernorm_epsilon"); !old.is_null() && !settings.contains("norm_epsilon"))
    settings["norm_epsilon"] = old;
  if (const json old = saved(args, "disable_bias_linear");
      !old.is_null() && !settings.contains("add_bias_linear"))
    settings["add_bias_linear"] = !is_true(old);
  // The tokenizers that are the same here. NullTokenizer counts its tokens in another way.
  for (const char* type : {"GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase"}) {
    if (saved(args, "tokenizer_type") == type) settings["tokenizer_type"] = type;
  }
  if (is_true(saved(args, "use_rotary_position_embeddings"))) settings["position_embedding_type"] = "rope";
  if (is_true(saved(args, "group_query_attention"))) {
    settings["group_query_attention"] = true;
    settings["num_query_groups"] = saved(args, "num_query_groups");
  }
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
                            .fix = "Only whole checkpoints of GPT, BERT and T5 models are converted"});
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw checkpoint_error(
        {.what = what, .where = source_.where, .fix = "Copy the folders mp_rank_* of all ranks"});
  }
  int64_t layers(const std::string& stack) const {
    int64_t count = 0;
    while (has(fmt::format("{}.layers.{}.self_attention.linear_qkv.weight", stack, count))) ++count;
    return count;
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

// The beginning of the names of the layer of a kind (1: with experts) that is the first in the stack.
std::string first_layer(const std::string& stack, const std::vector<int64_t>& experts, int64_t kind) {
  return fmt::format("{}.layers.{}.", stack, std::ranges::find(experts, kind) - experts.begin());
}

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

// Settings of the experts; returns where an MLP, or else an expert, is.
std::string take_experts(const Shapes& shapes, const std::string& stack, json& settings) {
  const std::vector<int64_t> experts = shapes.experts(stack);
  const std::string mlp = first_layer(stack, experts, 0) + "mlp.";
  if (std::ranges::count(experts, 1) == 0) return mlp;
  const std::string layer = first_layer(stack, experts, 1) + "mlp.", expert = layer + "experts.0.";
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
  const json given = settings.value("moe_layer_freq", json());
  const auto count = static_cast<int64_t>(experts.size());
  if (!given.is_string() || parse_layer_pattern(given.get<std::string>(), count) != experts)
    settings["moe_layer_freq"] = to_layer_pattern(experts);
  return std::ranges::count(experts, 0) == 0 ? expert : mlp;
}

// What the tensors themselves show; where they and saved arguments or flags disagree, the tensors are right
// or it is an error.
void take_shapes(const MegatronSource& source, json& settings) {
  const Shapes shapes(source);
  const std::string stack = source.family == MegatronFamily::gpt ? "decoder" : "encoder";
  const std::string layer = stack + ".layers.0.";
  const int64_t hidden = shapes.size("embedding.word_embeddings.weight", 1);
  const std::string mlp = take_experts(shapes, stack, settings);
  const int64_t fc1 = shapes.size(mlp + "linear_fc1.weight", 0);
  const int64_t ffn = shapes.size(mlp + "linear_fc2.weight", 1);
  settings.update({{"num_layers", shapes.layers(stack)}, {"hidden_size", hidden}, {"ffn_hidden_size", ffn}});
  if (source.family == MegatronFamily::t5) {
    settings["encoder_num_layers"] = shapes.layers("encoder");
    settings["decoder_num_layers"] = shapes.layers("decoder");
  }
  const std::string relative_bias = "encoder_relative_pos_emb.relative_attention_bias.weight";
  settings["swiglu"] = fc1 == 2 * ffn;
  settings["add_bias_linear"] = shapes.has(layer + "self_attention.linear_proj.bias");
  settings["add_qkv_bias"] =
      shapes.has(layer + "self_attention.linear_qkv.bias") && settings["add_bias_linear"] == false;
  settings["normalization"] = shapes.has(layer + "input_layernorm.bias") ? "LayerNorm" : "RMSNorm";
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
  if (source.family == MegatronFamily::bert) settings["bert_binary_head"] = shapes.has("binary_head.weight");
  if (!settings.contains("seq_length") && settings.contains("max_position_embeddings"))
    settings["seq_length"] = settings["max_position_embeddings"];
}

// NVIDIA's models of 345 million parameters, which are published without arguments.
bool is_published_345m(const MegatronSource& source, const json& settings) {
  return source.args == nullptr && settings["num_layers"] == 24 && settings["hidden_size"] == 1024 &&
         source.family != MegatronFamily::t5;
}

void take_heads(const MegatronSource& source, json& settings) {
  if (!settings.contains("num_attention_heads") && is_published_345m(source, settings))
    settings["num_attention_heads"] = 16;
  if (!settings.contains("num_attention_heads"))
    throw config_error(
        {.what = "the checkpoint does not say how many attention heads the model has",
         .where = source.where,
         .fix = "Give --num-attention-heads (NVIDIA's models of 345 million parameters have 16)"});
  const int64_t heads = settings["num_attention_heads"], hidden = settings["hidden_size"];
  const json groups_given = settings.value("num_query_groups", json());
  const bool grouped = is_true(settings.value("group_query_attention", json()));
  if (heads < 1 || heads > hidden)
    throw config_error(
        {.what = fmt::format("{} heads for a width of {}", heads, hidden), .where = "--num-attention-heads"});
  if (!is_true(settings.value("kv_channels", json()))) settings["kv_channels"] = hidden / heads;
  const int64_t channels = settings["kv_channels"];
  const int64_t groups = grouped && groups_given.is_number_integer() ? groups_given.get<int64_t>() : heads;
  const std::string stack = source.family == MegatronFamily::gpt ? "decoder" : "encoder";
  const int64_t rows = Shapes(source).size(stack + ".layers.0.self_attention.linear_qkv.weight", 0);
  if (channels < 1 || channels > rows || groups < 1 || groups > heads ||
      rows != (heads + 2 * groups) * channels)
    throw config_error(
        {.what = fmt::format("QKV has {} rows, which {} heads in {} query groups of {} channels do "
                             "not make",
                             rows, heads, groups, channels),
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
  if (is_true(saved(source.args, "num_experts")) && !has(".mlp.experts.0.linear_fc1.weight"))
    throw checkpoint_error(
        {.what = "models with num_experts are not converted from this format",
         .where = source.where,
         .fix = "Save the model in format 'torch' (--ckpt-format torch, or --dist-ckpt-format torch)"});
  const json own = saved(source.args, "expert_tensor_parallel_size");
  const json shared = saved(source.args, "tensor_model_parallel_size");
  if (is_true(saved(source.args, "num_experts")) && own.is_number_integer() && shared.is_number_integer() &&
      own != shared)
    throw checkpoint_error(
        {.what =
             fmt::format("experts with expert_tensor_parallel_size {} beside tensor_model_parallel_size {} "
                         "are not converted",
                         own.dump(), shared.dump()),
         .where = source.where,
         .fix = "Save the model with equal sizes"});
}

}  // namespace

json megatron_settings(const MegatronSource& source, const json& given) {
  for (const char* name : refused) {
    if (is_true(saved(source.args, name)))
      throw checkpoint_error({.what = fmt::format("models with {} are not converted", name),
                              .where = source.where,
                              .fix = "Only plain GPT, BERT and T5 models are"});
  }
  json settings = json::object();
  check_experts(source);
  take_saved(source.args, settings);
  settings.update(given);
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
  settings["model_family"] = source.family == MegatronFamily::gpt    ? "gpt"
                             : source.family == MegatronFamily::bert ? "bert"
                                                                     : "t5";
  return settings;
}

int64_t saved_vocabulary(const PickleValue* args) {
  const json rows = saved(args, "orig_vocab_size"), size = saved(args, "vocab_size");
  if (rows.is_number_integer() && rows > 0) return rows;
  if (!size.is_number_integer() || size <= 0) return 0;
  // NullTokenizer's does not count its end of document.
  return size.get<int64_t>() + (saved(args, "tokenizer_type") == "NullTokenizer" ? 1 : 0);
}

}  // namespace teratron
