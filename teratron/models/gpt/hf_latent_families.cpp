// GPT's model_types of Hugging Face with multi-head latent attention: DeepSeek-V2 and V3 (R1, Moonlight),
// Kimi-K2, GLM-4 MoE lite.
#include <algorithm>
#include <cmath>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_experts_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace latent {

namespace {

// --- attention ---

void read_all_heads(std::string_view key, HfConfig& config) {
  const int64_t heads = config.size("num_attention_heads");
  if (config.get(key, heads) != heads) config.unsupported(key);
}
void write_all_heads(std::string_view key, HfConfig& config) {
  if (config.is_set("group_query_attention")) config.problem("group_query_attention is true, not false");
  config.keys[key] = config.size("num_attention_heads");
}

// transformers derives it, and tools read it.
void read_head_width(std::string_view, HfConfig&) {}
void write_head_width(std::string_view key, HfConfig& config) {
  const int64_t rope = config.size("qk_pos_emb_head_dim");
  config.keys.update({{std::string(key), rope}, {"qk_head_dim", rope + config.size("qk_head_dim")}});
}

// Norms of latents have this one, whatever rms_norm_eps is.
constexpr double latent_epsilon = 1e-6;
void read_latent_epsilon(std::string_view, HfConfig& config) {
  if (config.settings.at("norm_epsilon") != latent_epsilon)
    config.settings["latent_norm_epsilon"] = latent_epsilon;
}
void write_latent_epsilon(std::string_view, HfConfig& config) {
  const json& own = config.settings.at("latent_norm_epsilon");
  const json& epsilon = own.is_null() ? config.settings.at("norm_epsilon") : own;
  if (epsilon != latent_epsilon)
    config.problem("the epsilon of the norms of latents is {}, not {}", epsilon.dump(), latent_epsilon);
}

void read_query_rank(std::string_view key, HfConfig& config) {
  config.settings["q_lora_rank"] = config.has(key) ? config.get(key, nullptr) : json();
}
void write_query_rank(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings.at("q_lora_rank");
}

// The factor of cosines and sines as read_rope has it, but beside a factor of the scores, which follows from
// mscale_all_dim whether or not mscale is there.
void read_latent_rope(std::string_view key, HfConfig& config) {
  read_rope(key, config);
  const double all_dim = config.get("mscale_all_dim", 0.0);
  json& settings = config.settings;
  if (settings.value("position_embedding_type", "") != "yarn") {
    if (all_dim != 0.0) config.unsupported("mscale_all_dim");
    return;
  }
  const double factor = settings.at("rotary_scaling_factor");
  if (factor <= 1.0) return;
  const auto magnitude = [&](double scale) { return 0.1 * scale * std::log(factor) + 1.0; };
  const bool given = config.has("attention_factor");
  if (!given && config.get("mscale", 0.0) > 0.0 && all_dim > 0.0) return;
  const double of_rope = given ? config.get("attention_factor", 1.0).get<double>() : magnitude(1.0);
  const double mscale = (of_rope * magnitude(all_dim) - 1.0) / (0.1 * std::log(factor));
  if (mscale < 0.0) return config.unsupported("attention_factor");
  settings.update({{"mscale", mscale}, {"mscale_all_dim", all_dim}});
}
// Megatron-LM's flags have YaRN here by another one than in other models.
void write_latent_rope(std::string_view key, HfConfig& config) {
  json& position = config.settings.at("position_embedding_type");
  const bool scales = config.settings.at("rotary_scaling_factor").get<double>() > 1.0;
  if (position == "rope" && config.settings.at("rope_type") != "rope" && scales) position = "yarn";
  write_rope(key, config);
  const double all_dim = config.settings.at("mscale_all_dim");
  for (const char* const dict : {"rope_parameters", "rope_scaling"}) {
    if (config.keys.contains(dict) && config.keys[dict]["rope_type"] == "yarn" && all_dim > 0.0)
      config.keys[dict]["mscale_all_dim"] = all_dim;
  }
}

HfLayerKinds layer_kinds(HfConfig& config, int64_t layers) {
  const bool latent = !config.settings.value("q_lora_rank", json()).is_null();
  HfLayerKinds kinds = experts_kinds(config, layers);
  for (std::vector<std::string_view>& kind : kinds) kind.push_back(latent ? "latent queries" : "queries");
  return kinds;
}

// clang-format off

constexpr std::string_view q_rank = "q_lora_rank", kv_rank = "kv_lora_rank",
    all_queries = "num_attention_heads*qk_head_dim+num_attention_heads*qk_pos_emb_head_dim",
    all_keys_values = "num_attention_heads*qk_head_dim+num_attention_heads*v_head_dim",
    all_values = "num_attention_heads*v_head_dim", latent_rows = "kv_lora_rank+qk_pos_emb_head_dim";

const std::vector<std::string_view> attention_biases = {"add_attention_bias"};

const std::vector<HfTensorRow> attention_rows = {
    {"self_attention.linear_q_proj.weight", same, {"self_attn.q_proj.weight"}, {all_queries, hidden}, {.in = "queries"}},
    {"self_attention.linear_q_down_proj.weight", same, {"self_attn.q_a_proj.weight"}, {q_rank, hidden},
     {.bias = attention_biases, .in = "latent queries"}},
    {"self_attention.q_layernorm.weight", same, {"self_attn.q_a_layernorm.weight"}, {q_rank}, {.in = "latent queries"}},
    {"self_attention.linear_q_up_proj.weight", same, {"self_attn.q_b_proj.weight"}, {all_queries, q_rank},
     {.in = "latent queries"}},
    {"self_attention.linear_kv_down_proj.weight", same, {"self_attn.kv_a_proj_with_mqa.weight"}, {latent_rows, hidden},
     {.bias = attention_biases}},
    {"self_attention.kv_layernorm.weight", same, {"self_attn.kv_a_layernorm.weight"}, {kv_rank}},
    {"self_attention.linear_kv_up_proj.weight", same, {"self_attn.kv_b_proj.weight"}, {all_keys_values, kv_rank}},
    {"self_attention.linear_proj.weight", same, {"self_attn.o_proj.weight"}, {hidden, all_values},
     {.bias = attention_biases}}};

const std::vector<HfKey> latent_keys = {
    setting_is("multi_latent_attention", true), setting_is("qk_layernorm", true),
    {"num_key_value_heads", "num_query_groups", {.read = read_all_heads, .write = write_all_heads}},
    {"head_dim", "kv_channels", {.read = read_head_width, .write = write_head_width}},
    {"q_lora_rank", "q_lora_rank", {.read = read_query_rank, .write = write_query_rank}},
    {"kv_lora_rank", "kv_lora_rank"}, {"qk_nope_head_dim", "qk_head_dim"}, {"qk_rope_head_dim", "qk_pos_emb_head_dim"},
    {"v_head_dim", "v_head_dim"}, attention_bias, no_qkv_bias, setting_is("add_bias_linear", false),
    {"rope_parameters", "rotary_base", {.read = read_latent_rope, .write = write_latent_rope}},
    {"", "window_size", no_windows}};

const std::vector<HfKey> v3_keys = {
    {"rope_interleave", "latent_rotary_halves", {.otherwise = true, .negate = true}}};
const std::vector<HfKey> v2_keys = {key_is("mlp_bias", false), setting_is("latent_rotary_halves", false)};
const std::vector<HfKey> lite_keys = {
    {"rope_interleave", "latent_rotary_halves", {.otherwise = true, .negate = true}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}}};

const json v3_defaults = {
    {"vocab_size", 129280}, {"hidden_size", 7168}, {"intermediate_size", 18432}, {"moe_intermediate_size", 2048},
    {"num_hidden_layers", 61}, {"num_attention_heads", 128}, {"n_shared_experts", 1}, {"n_routed_experts", 256},
    {"routed_scaling_factor", 2.5}, {"kv_lora_rank", 512}, {"q_lora_rank", 1536}, {"qk_rope_head_dim", 64},
    {"v_head_dim", 128}, {"qk_nope_head_dim", 128}, {"n_group", 8}, {"topk_group", 4}, {"num_experts_per_tok", 8},
    {"first_k_dense_replace", 3}, {"norm_topk_prob", true}, {"max_position_embeddings", 4096}};
const json v2_defaults = {
    {"vocab_size", 102400}, {"hidden_size", 4096}, {"intermediate_size", 11008}, {"moe_intermediate_size", 1407},
    {"num_hidden_layers", 32}, {"num_attention_heads", 32}, {"n_shared_experts", 2}, {"n_routed_experts", 64},
    {"kv_lora_rank", 512}, {"q_lora_rank", 1536}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128},
    {"qk_nope_head_dim", 128}, {"max_position_embeddings", 2048}};
const json lite_defaults = {
    {"vocab_size", 154880}, {"hidden_size", 2048}, {"intermediate_size", 10240}, {"moe_intermediate_size", 1536},
    {"num_hidden_layers", 47}, {"num_attention_heads", 20}, {"n_shared_experts", 1}, {"n_routed_experts", 64},
    {"routed_scaling_factor", 1.8}, {"kv_lora_rank", 512}, {"q_lora_rank", 768}, {"qk_rope_head_dim", 64},
    {"v_head_dim", 256}, {"qk_nope_head_dim", 192}, {"num_experts_per_tok", 4}, {"max_position_embeddings", 202752}};
// clang-format on

HfFamily latent_family(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
                       const json& defaults) {
  const bool is_v2 = type == "deepseek_v2";
  const std::vector<HfKey> experts = deepseek_experts_keys(),
                           router = is_v2 ? v2_router_keys() : v3_router_keys(),
                           layers = type == "glm4_moe_lite" ? mlp_types_keys() : first_dense_keys();
  std::vector<HfKey> keys = joined(latent_keys, {&experts, &own, &layers, &router});
  keys.push_back({"", "latent_norm_epsilon", {.read = read_latent_epsilon, .write = write_latent_epsilon}});
  HfFamily family = llama_like(type, architecture, keys, defaults);
  replace_rows(family, "self_attention.", attention_rows);
  family = with_deepseek_experts(std::move(family), !is_v2);
  family.layer_kinds = layer_kinds;
  if (!is_v2) add_mtp(family);
  add_deepseek_other_keys(family);
  return family;
}

}  // namespace

// kimi_k2 is DeepSeek-V3 by another name.
static std::vector<HfFamily> all() {
  HfFamily v3 = latent_family("deepseek_v3", "DeepseekV3ForCausalLM", v3_keys, v3_defaults);
  HfFamily v2 = latent_family("deepseek_v2", "DeepseekV2ForCausalLM", v2_keys, v2_defaults);
  HfFamily lite = latent_family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", lite_keys, lite_defaults);
  v3.aliases = {{"num_local_experts", "n_routed_experts"}, {"num_mtp_layers", "num_nextn_predict_layers"}};
  v2.aliases = {{"num_experts", "n_routed_experts"}};
  lite.aliases = {{"num_local_experts", "n_routed_experts"}};
  HfFamily kimi = v3;
  kimi.model_type = "kimi_k2";
  return {std::move(v3), std::move(v2), std::move(lite), std::move(kimi)};
}

}  // namespace latent

std::vector<HfFamily> latent_families() {
  return latent::all();
}

}  // namespace teratron::gpt_hf_keys
