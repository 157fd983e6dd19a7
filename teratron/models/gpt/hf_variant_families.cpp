// GPT's model_types of Hugging Face that are Llama with one or two options: Phi-3, Granite,
// SmolLM3, Seed-OSS, GLM-4, StarCoder2.
#include <cmath>

#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_experts_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

void read_attention_multiplier(std::string_view key, HfConfig& config) {
  config.settings["softmax_scale"] = config.get(key, 1.0);
}
void write_attention_multiplier(std::string_view key, HfConfig& config) {
  const json& scale = config.settings.at("softmax_scale");
  config.keys[key] =
      scale.is_null() ? json(1.0 / std::sqrt(static_cast<double>(config.size("kv_channels")))) : scale;
}

void read_logits_scaling(std::string_view key, HfConfig& config) {
  const double divisor = config.get(key, 1.0);
  if (!(divisor > 0.0)) return config.unsupported(key);
  config.settings["logits_multiplier"] = 1.0 / divisor;
}
void write_logits_scaling(std::string_view key, HfConfig& config) {
  config.keys[key] = 1.0 / config.settings.at("logits_multiplier").get<double>();
}

// Phi-3's first files call LongRoPE by two other names.
void read_phi3_rope(std::string_view key, HfConfig& config) {
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(name) || !config.keys[name].is_object()) continue;
    for (const char* const type : {"type", "rope_type"}) {
      json& rope = config.keys[name];
      if (rope.contains(type) && (rope[type] == "su" || rope[type] == "yarn")) rope[type] = "longrope";
    }
  }
  config.keys.emplace("partial_rotary_factor", 1.0);
  read_rope_share(key, config);
}

void write_phi3_rope(std::string_view key, HfConfig& config) {
  write_rope_share(key, config);
  if (config.settings.at("longrope_short_factors").empty()) return;
  const json length = config.settings.at("longrope_original_max_position_embeddings");
  json& rope = config.keys["rope_parameters"];
  rope.update({{"rope_type", "longrope"},
               {"short_factor", config.settings.at("longrope_short_factors")},
               {"long_factor", config.settings.at("longrope_long_factors")},
               {"attention_factor", config.settings.at("longrope_attention_factor")},
               {"original_max_position_embeddings", length}});
  config.keys["original_max_position_embeddings"] = length;
}

// Biases of queries, keys and values, and of the output.
void read_two_biases(std::string_view key, HfConfig& config) {
  const bool qkv = config.get(key, true), output = config.get("attention_out_bias", false);
  if (output && !qkv) config.problem("'attention_out_bias' = true is not supported without '{}'", key);
  config.settings.update({{"add_attention_bias", qkv && output}, {"add_qkv_bias", qkv && !output}});
}
void write_two_biases(std::string_view key, HfConfig& config) {
  const bool all = config.is_set("add_attention_bias");
  config.keys.update({{std::string(key), all || config.is_set("add_qkv_bias")}, {"attention_out_bias", all}});
}

void write_either_gelu(std::string_view key, HfConfig& config) {
  write_gelu(key, config);
  if (config.keys[key] == "gelu_new") config.keys[key] = "gelu_pytorch_tanh";
}

// clang-format off

const std::vector<HfKey> phi3_keys = {
    setting_is("add_bias_linear", false), setting_is("add_qkv_bias", false), only_without("qk_layernorm"),
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}}, {"sliding_window", "window_size", windows},
    {"resid_pdrop", "hidden_dropout", {.otherwise = 0.0}},
    {"embd_pdrop", "hidden_dropout", {.otherwise = 0.0, .export_only = true}},
    {"rope_parameters", "rotary_base", {.read = read_phi3_rope, .write = write_phi3_rope}},
    {"", "rotary_percent", {.export_only = true}}, {"", "longrope_short_factors", {.export_only = true}}};
const json phi3_defaults = {
    {"vocab_size", 32064}, {"hidden_size", 3072}, {"intermediate_size", 8192}, {"num_hidden_layers", 32},
    {"num_attention_heads", 32}, {"max_position_embeddings", 4096}, {"original_max_position_embeddings", 4096}};

const std::vector<HfKey> plain_granite_keys = {
    {"embedding_multiplier", "embedding_multiplier", {.otherwise = 1.0}},
    {"residual_multiplier", "residual_multiplier", {.otherwise = 1.0}},
    {"attention_multiplier", "softmax_scale", {.read = read_attention_multiplier, .write = write_attention_multiplier}},
    {"logits_scaling", "logits_multiplier", {.read = read_logits_scaling, .write = write_logits_scaling}},
    no_qkv_bias, only_without("qk_layernorm"), {"", "window_size", no_windows}};
const std::vector<HfKey> granite_dense_keys = {
    {"attention_bias", "add_bias_linear", {.read = read_biases, .write = write_biases}},
    {"", "add_attention_bias", {.export_only = true}}};
const std::vector<HfKey> granite_moe_keys = {
    attention_bias, setting_is("add_bias_linear", false),
    {"intermediate_size", ffn, {.read = read_expert_ffn, .write = write_expert_ffn}},
    {"num_local_experts", "num_experts", {.otherwise = 8}},
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 2}}, setting_is("moe_router_pre_softmax", false),
    {"", "moe_router_score_function", {.export_only = true, .write = write_plain_router}},
    {"", "moe_layer_freq", {.export_only = true, .write = write_all_sparse}},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}}};
const json plain_granite_defaults = {{"vocab_size", 32000}, {"hidden_size", 4096}, {"intermediate_size", 11008},
                               {"num_hidden_layers", 32}, {"num_attention_heads", 32}};
const std::vector<HfTensorRow> plain_granite_experts = {
    {"mlp.router.weight", same, {"block_sparse_moe.router.layer.weight"}, {"num_experts", hidden}},
    {"mlp.experts.#.linear_fc1.weight", stacked, {"block_sparse_moe.input_linear.weight"},
     {"2*moe_ffn_hidden_size", hidden}},
    {"mlp.experts.#.linear_fc2.weight", stacked, {"block_sparse_moe.output_linear.weight"},
     {hidden, expert_ffn}}};

const std::vector<HfKey> smollm3_keys = {
    {"attention_bias", "add_bias_linear", {.read = read_biases, .write = write_biases}},
    {"", "add_attention_bias", {.export_only = true}}, no_qkv_bias, only_without("qk_layernorm"),
    key_is("use_sliding_window", false), {"", "window_size", no_windows},
    {"no_rope_layers", "no_rope_freq", {.read = read_no_rope_layers, .write = write_no_rope_layers}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};
const json smollm3_defaults = {
    {"vocab_size", 128256}, {"hidden_size", 2048}, {"intermediate_size", 11008}, {"num_hidden_layers", 36},
    {"num_attention_heads", 16}, {"num_key_value_heads", 4}, {"max_position_embeddings", 32768},
    {"rope_theta", 2e6}};

const std::vector<HfKey> seed_keys = {
    key_is("mlp_bias", false), setting_is("add_bias_linear", false),
    {"attention_bias", "add_attention_bias", {.read = read_two_biases, .write = write_two_biases}},
    {"", "add_qkv_bias", {.export_only = true}}, only_without("qk_layernorm"), {"", "window_size", no_windows},
    {"head_dim", "kv_channels", {.otherwise = 128}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.1}},
    {"residual_dropout", "hidden_dropout", {.otherwise = 0.1}}};
const json seed_defaults = {
    {"vocab_size", 155136}, {"hidden_size", 4096}, {"intermediate_size", 27648}, {"num_hidden_layers", 64},
    {"num_attention_heads", 80}, {"num_key_value_heads", 8}, {"max_position_embeddings", 524288}};

const std::vector<HfKey> glm4_keys = {
    setting_is("add_bias_linear", false), {"attention_bias", "add_qkv_bias", {.otherwise = true}},
    only_without("add_attention_bias"), only_without("qk_layernorm"), {"", "window_size", no_windows},
    {"head_dim", "kv_channels", {.otherwise = 128}}, setting_is("norm_position", "both"),
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1.5625e-7}}, setting_is("rotary_interleaved", true),
    {"rope_parameters", "rotary_base", {.read = read_half_rope, .write = write_rope_share}},
    {"", "rotary_percent", {.export_only = true}}};
const json glm4_defaults = {
    {"vocab_size", 151552}, {"hidden_size", 4096}, {"intermediate_size", 13696}, {"num_hidden_layers", 40},
    {"num_attention_heads", 32}, {"num_key_value_heads", 2}, {"max_position_embeddings", 131072}};
const std::vector<HfTensorRow> glm4_norms = {
    {"self_attention.linear_proj.post_layernorm.weight", same, {"post_self_attn_layernorm.weight"}, {hidden}},
    {"mlp.linear_fc2.post_layernorm.weight", same, {"post_mlp_layernorm.weight"}, {hidden}}};

const std::vector<HfKey> starcoder2_keys = {
    key_is("use_bias", true), setting_is("add_bias_linear", true), setting_is("add_qkv_bias", false),
    only_without("qk_layernorm"), setting_is("normalization", "LayerNorm"), setting_is("swiglu", false),
    {"norm_epsilon", "norm_epsilon", {.otherwise = 1e-5}}, {"sliding_window", "window_size", windows},
    {"hidden_act", "bias_gelu_fusion",
     {.otherwise = "gelu_pytorch_tanh", .values = gelu_names, .write = write_either_gelu}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"residual_dropout", "hidden_dropout", {.otherwise = 0.0}},
    {"embedding_dropout", "hidden_dropout", {.otherwise = 0.0}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};
const json starcoder2_defaults = {
    {"vocab_size", 49152}, {"hidden_size", 3072}, {"intermediate_size", 12288}, {"num_hidden_layers", 30},
    {"num_attention_heads", 24}, {"num_key_value_heads", 2}, {"max_position_embeddings", 4096}};
const std::vector<HfTensorRow> starcoder2_mlp = {
    {"mlp.linear_fc1.weight", same, {"mlp.c_fc.weight"}, {ffn, hidden}, biased},
    {"mlp.linear_fc2.weight", same, {"mlp.c_proj.weight"}, {hidden, ffn}, biased}};

// clang-format on

// Q, K and V, and gates and ups, are one tensor each.
HfFamily with_fused_gates(HfFamily family) {
  for (HfTensorRow& row : family.tensors[1].rows) {
    if (row.name != "mlp.linear_fc1.weight") continue;
    row.rule = same;
    row.sources = {"mlp.gate_up_proj.weight"};
    row.shape = {"2*ffn_hidden_size", hidden};
  }
  return family;
}

HfFamily phi3() {
  HfFamily family = with_fused_gates(llama_like("phi3", "Phi3ForCausalLM", phi3_keys, phi3_defaults));
  for (HfTensorRow& row : family.tensors[1].rows) {
    if (row.name == "self_attention.linear_qkv.weight") row.sources = {"self_attn.qkv_proj.weight"};
  }
  return family;
}

HfFamily granite_moe() {
  HfFamily family = llama_like("granitemoe", "GraniteMoeForCausalLM",
                               joined(plain_granite_keys, {&granite_moe_keys}), plain_granite_defaults);
  for (const char* const training : {"router_aux_loss_coef", "output_router_logits"})
    family.other_keys.push_back(training);
  replace_rows(family, "mlp.", plain_granite_experts);
  return family;
}

HfFamily glm4() {
  HfFamily family = with_fused_gates(llama_like("glm4", "Glm4ForCausalLM", glm4_keys, glm4_defaults));
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  rows.insert(rows.end(), glm4_norms.begin(), glm4_norms.end());
  return family;
}

HfFamily starcoder2() {
  HfFamily family = llama_like("starcoder2", "Starcoder2ForCausalLM", starcoder2_keys, starcoder2_defaults);
  replace_rows(family, "mlp.", starcoder2_mlp);
  for (HfTensorRow& row : family.tensors[1].rows) {
    if (row.name == "input_layernorm.weight" || row.name == "pre_mlp_layernorm.weight") row.options = biased;
  }
  family.tensors[2].rows[0].options = biased;
  return family;
}

HfFamily with_other_keys(HfFamily family, std::initializer_list<std::string_view> keys) {
  family.other_keys.insert(family.other_keys.end(), keys);
  return family;
}

}  // namespace

std::vector<HfFamily> variant_families() {
  return {
      phi3(),
      with_other_keys(llama_like("granite", "GraniteForCausalLM",
                                 joined(plain_granite_keys, {&granite_dense_keys}), plain_granite_defaults),
                      {"mlp_bias"}),
      granite_moe(),
      with_other_keys(llama_like("smollm3", "SmolLM3ForCausalLM", smollm3_keys, smollm3_defaults),
                      {"mlp_bias", "no_rope_layer_interval"}),
      with_other_keys(llama_like("seed_oss", "SeedOssForCausalLM", seed_keys, seed_defaults),
                      {"attention_out_bias"}),
      glm4(),
      starcoder2()};
}

}  // namespace teratron::gpt_hf_keys
