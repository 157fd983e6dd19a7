// gpt-oss of Hugging Face: sinks, windows in every other layer, experts that files hold together.
#include "teratron/models/gpt/hf_experts_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

// MXFP4 is read as numbers (hf/quantized/mxfp4.h).
void read_quantization(std::string_view key, HfConfig& config) {
  if (!config.has(key)) return;
  const json& quantization = config.keys[key];
  const std::string method = quantization.is_object() ? quantization.value("quant_method", "") : "";
  if (method != "mxfp4")
    config.problem("the weights are quantized by '{}', of which only 'mxfp4' is read here",
                   printable(method));
}
void write_nothing(std::string_view, HfConfig&) {}

// clang-format off

const std::vector<HfKey> gpt_oss_keys = {
    key_is("attention_bias", true), setting_is("add_bias_linear", true), setting_is("add_qkv_bias", false),
    only_without("qk_layernorm"),
    {"head_dim", "kv_channels", {.otherwise = 64}}, {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"layer_types", "window_size", {.read = read_window_types<2>, .write = write_window_types}},
    setting_is("softmax_type", "learnable"),
    {"intermediate_size", ffn, {.read = read_expert_ffn, .write = write_expert_ffn}},
    {"num_local_experts", "num_experts", {.otherwise = 128}},
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 4}}, setting_is("moe_router_pre_softmax", false),
    {"", "moe_router_score_function", {.export_only = true, .write = write_plain_router}},
    {"", "moe_layer_freq", {.export_only = true, .write = write_all_sparse}},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}},
    {"hidden_act", "quick_geglu", {.otherwise = "silu", .values = {{"silu", true}}}},
    setting_is("swiglu", false), setting_is("glu_linear_offset", 1.0),
    {"swiglu_alpha", "quick_geglu_slope", {.otherwise = 1.702}},
    {"swiglu_limit", "activation_func_clamp_value", {.otherwise = 7.0}},
    {"quantization_config", "", {.read = read_quantization, .write = write_nothing}}};

const json gpt_oss_defaults = {
    {"vocab_size", 201088}, {"hidden_size", 2880}, {"intermediate_size", 2880}, {"num_hidden_layers", 36},
    {"num_attention_heads", 64}, {"num_key_value_heads", 8}, {"max_position_embeddings", 131072},
    {"sliding_window", 128}, {"rope_theta", 150000.0},
    {"rope_parameters", {{"rope_type", "yarn"}, {"factor", 32.0}, {"beta_fast", 32.0}, {"beta_slow", 1.0},
                         {"truncate", false}, {"original_max_position_embeddings", 4096}}}};

constexpr std::string_view gpt_oss_fc1_width = "2*moe_ffn_hidden_size";

const std::vector<HfTensorRow> gpt_oss_rows = {
    {"self_attention.core_attention.softmax_offset", same, {"self_attn.sinks"}, {heads}},
    {"mlp.router.weight", same, {"mlp.router.weight"}, {"num_experts", hidden}, {.bias = {"add_bias_linear"}}},
    {"mlp.experts.#.linear_fc1.weight", alternating, {"mlp.experts.#.gate_up_proj"}, {gpt_oss_fc1_width, hidden}},
    {"mlp.experts.#.linear_fc1.bias", alternating, {"mlp.experts.#.gate_up_proj_bias"}, {gpt_oss_fc1_width}},
    {"mlp.experts.#.linear_fc2.weight", transpose, {"mlp.experts.#.down_proj"}, {hidden, expert_ffn}},
    {"mlp.experts.#.linear_fc2.bias", same, {"mlp.experts.#.down_proj_bias"}, {hidden}}};

const std::vector<HfFusedExperts> gpt_oss_fused = {
    {"mlp.experts.gate_up_proj", {"mlp.experts.#.gate_up_proj"}, true},
    {"mlp.experts.gate_up_proj_bias", {"mlp.experts.#.gate_up_proj_bias"}, true},
    {"mlp.experts.down_proj", {"mlp.experts.#.down_proj"}, true},
    {"mlp.experts.down_proj_bias", {"mlp.experts.#.down_proj_bias"}, true}};

// clang-format on

}  // namespace

HfFamily gpt_oss_family() {
  HfFamily family = llama_like("gpt_oss", "GptOssForCausalLM", gpt_oss_keys, gpt_oss_defaults);
  family.aliases = {{"num_experts", "num_local_experts"}};
  family.fused_experts = gpt_oss_fused;
  for (const char* const training :
       {"router_aux_loss_coef", "output_router_logits", "initial_context_length", "experts_per_token"})
    family.other_keys.push_back(training);
  replace_rows(family, "mlp.", gpt_oss_rows);
  return family;
}

}  // namespace teratron::gpt_hf_keys
