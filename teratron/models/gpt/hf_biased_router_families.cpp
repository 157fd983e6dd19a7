// GPT's model_types of Hugging Face whose routers choose experts by scores with biases, beside those with
// multi-head latent attention: GLM-4.5, MiniMax-M2, ERNIE 4.5.
#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_experts_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

// --- MiniMax-M2 ---

// Published files have a number of channels in place of their share.
void read_rotary_dim(std::string_view key, HfConfig& config) {
  const auto width = static_cast<double>(std::max<int64_t>(config.size("kv_channels"), 1));
  const double rotated = config.get("rotary_dim", width);
  config.keys.emplace("partial_rotary_factor", rotated / width);
  read_rope_share(key, config);
}

void read_minimax_router(std::string_view, HfConfig& config) {
  read_sigmoid_router(/*normalizes=*/true, config);
}
void write_minimax_router(std::string_view, HfConfig& config) {
  if (!write_sigmoid_router(config)) config.problem("scores of chosen experts are not divided by their sum");
  refuse_unless(config, "moe_router_topk_scaling_factor", nullptr);
  refuse_unless(config, "moe_router_num_groups", nullptr);
}

// 1 for each layer with attention to all tokens.
void read_attention_types(std::string_view key, HfConfig& config) {
  if (config.has(key) && !std::ranges::all_of(config.keys[key], [](const json& type) { return type == 1; }))
    config.unsupported(key);
}
void write_no_types(std::string_view, HfConfig&) {}

// --- ERNIE 4.5 ---

// A whole number of either sign.
std::optional<int64_t> number(std::string_view key, HfConfig& config, int64_t otherwise) {
  if (!config.has(key)) return otherwise;
  const json& value = config.keys[key];
  if (value.is_number_integer() && value >= -1 && value <= most_layers) return value.get<int64_t>();
  config.unsupported(key);
  return std::nullopt;
}

constexpr std::string_view first_key = "moe_layer_start_index", last_key = "moe_layer_end_index";

// Every moe_layer_interval-th layer, counted from 1, from the first to the last one given.
void read_expert_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.size("num_layers"), every = config.get(key, 1);
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  const auto first = number(first_key, config, 1), last = number(last_key, config, -1);
  if (!first || !last) return;
  const int64_t end = *last == -1 ? layers - 1 : *last;
  std::vector<int64_t> pattern;
  for (int64_t layer = 0; layer < layers; ++layer)
    pattern.push_back((layer + 1) % every == 0 && layer >= *first && layer <= end ? 1 : 0);
  set_expert_layers(pattern, config);
}
void write_expert_layers(std::string_view key, HfConfig& config) {
  const std::vector<int64_t> pattern = expert_layers(config, config.size("num_layers"));
  const auto first = std::ranges::find(pattern, 1) - pattern.begin();
  const auto next =
      std::find(pattern.begin() + std::min<int64_t>(first + 1, std::ssize(pattern)), pattern.end(), 1) -
      pattern.begin();
  const int64_t every = next < std::ssize(pattern) ? next - first : first + 1;
  int64_t last = first;
  for (int64_t layer = 0; layer < std::ssize(pattern); ++layer) {
    if (pattern[static_cast<size_t>(layer)] != 0) last = layer;
  }
  for (int64_t layer = 0; layer < std::ssize(pattern); ++layer) {
    const bool expected = (layer + 1) % every == 0 && layer >= first && layer <= last;
    if (expected != (pattern[static_cast<size_t>(layer)] != 0))
      return config.problem("moe_layer_freq is {}", config.settings.at("moe_layer_freq").dump());
  }
  config.keys.update({{std::string(key), every}, {first_key, first}, {last_key, last}});
}

void write_ernie_router(std::string_view key, HfConfig& config) {
  refuse_unless(config, "moe_router_score_function", "softmax");
  refuse_unless(config, "moe_router_pre_softmax", true);
  refuse_unless(config, "moe_router_enable_expert_bias", true);
  refuse_unless(config, "moe_router_topk_scaling_factor", nullptr);
  refuse_unless(config, "moe_router_num_groups", nullptr);
  const json& least = config.settings.at("moe_router_least_sum");
  if (least.is_null()) return config.problem("moe_router_least_sum is not set");
  config.keys[key] = least;
}

// clang-format off

const std::vector<HfKey> glm_keys = {
    setting_is("add_bias_linear", false), {"attention_bias", "add_qkv_bias", {.otherwise = false}},
    only_without("add_attention_bias"), {"use_qk_norm", "qk_layernorm", {.otherwise = false}},
    {"", "window_size", no_windows}, {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"rope_parameters", "rotary_base", {.read = read_half_rope, .write = write_rope_share}},
    {"", "rotary_percent", {.export_only = true}}};
const json glm_defaults = {
    {"vocab_size", 151552}, {"hidden_size", 4096}, {"intermediate_size", 10944}, {"moe_intermediate_size", 1408},
    {"num_hidden_layers", 46}, {"num_attention_heads", 96}, {"num_key_value_heads", 8}, {"n_shared_experts", 1},
    {"n_routed_experts", 128}, {"routed_scaling_factor", 1.0}, {"n_group", 1}, {"topk_group", 1},
    {"num_experts_per_tok", 8}, {"first_k_dense_replace", 1}, {"norm_topk_prob", true},
    {"max_position_embeddings", 131072}};

const std::vector<HfKey> minimax_keys = {
    setting_is("add_bias_linear", false), setting_is("add_qkv_bias", false), key_is("use_qk_norm", true),
    key_is("qk_norm_type", "per_layer"), setting_is("qk_layernorm", true), setting_is("qk_layernorm_all_heads", true),
    {"", "window_size", no_windows}, {"head_dim", "kv_channels", {.otherwise = 128}},
    {"rope_parameters", "rotary_base", {.read = read_rotary_dim, .write = write_rope_share}},
    {"", "rotary_percent", {.export_only = true}}, key_is("scoring_func", "sigmoid"), key_is("use_routing_bias", true),
    {"attn_type_list", "", {.read = read_attention_types, .write = write_no_types}},
    {"intermediate_size", ffn, {.read = read_expert_ffn, .write = write_expert_ffn}},
    {"num_local_experts", "num_experts", {.otherwise = 256}},
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 8}},
    {"", "moe_router_score_function", {.read = read_minimax_router, .write = write_minimax_router}},
    {"", "moe_router_unnormalized", {.export_only = true}}, {"", "moe_router_normalize_one", {.export_only = true}},
    {"", "moe_layer_freq", {.export_only = true, .write = write_all_sparse}},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}}};
const json minimax_defaults = {
    {"vocab_size", 200064}, {"hidden_size", 3072}, {"intermediate_size", 1536}, {"num_hidden_layers", 62},
    {"num_attention_heads", 48}, {"num_key_value_heads", 8}, {"max_position_embeddings", 196608},
    {"rope_theta", 5e6}};

const std::vector<HfKey> ernie_keys = {
    key_is("use_bias", false), setting_is("add_bias_linear", false), setting_is("add_qkv_bias", false),
    only_without("qk_layernorm"), {"", "window_size", no_windows}, setting_is("rotary_interleaved", true),
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"moe_num_experts", "num_experts", {.otherwise = 64}}, {"moe_k", "moe_router_topk", {.otherwise = 6}},
    {"moe_intermediate_size", expert_ffn, {.otherwise = 1536}}, shared_experts_key("moe_num_shared_experts"),
    {"moe_layer_interval", "moe_layer_freq", {.read = read_expert_layers, .write = write_expert_layers}},
    {"", "moe_router_score_function", {.otherwise = "softmax"}},
    {"", "moe_router_pre_softmax", {.otherwise = true}}, {"", "moe_router_enable_expert_bias", {.otherwise = true}},
    {"moe_norm_min", "moe_router_least_sum", {.otherwise = 1e-12, .write = write_ernie_router}},
    {"", "moe_router_dtype", {.otherwise = "fp32"}}, only_without("moe_shared_expert_gate"),
    key_is("moe_gate", "topk"), key_is("moe_use_aux_free", true),
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};
const json ernie_defaults = {
    {"vocab_size", 103424}, {"hidden_size", 2560}, {"intermediate_size", 12288}, {"num_hidden_layers", 28},
    {"num_attention_heads", 20}, {"num_key_value_heads", 4}, {"max_position_embeddings", 131072},
    {"moe_num_shared_experts", 2}, {"rope_theta", 5e5}};

// clang-format on

HfFamily glm4_moe() {
  const std::vector<HfKey> experts = deepseek_experts_keys(), router = v3_router_keys(),
                           layers = first_dense_keys();
  HfFamily family =
      with_deepseek_experts(llama_like("glm4_moe", "Glm4MoeForCausalLM",
                                       joined(glm_keys, {&experts, &layers, &router}), glm_defaults),
                            /*has_bias=*/true);
  family.aliases = {{"num_local_experts", "n_routed_experts"},
                    {"num_mtp_layers", "num_nextn_predict_layers"}};
  add_mtp(family);
  add_deepseek_other_keys(family);
  return family;
}

HfFamily minimax_m2() {
  HfFamily family =
      with_minimax_experts(llama_like("minimax_m2", "MiniMaxM2ForCausalLM", minimax_keys, minimax_defaults));
  family.aliases = {{"num_experts", "num_local_experts"}};
  with_norms_of_all_heads(family);
  for (const char* const key :
       {"rotary_dim", "use_mtp", "num_mtp_modules", "mtp_transformer_layers", "shared_moe_mode",
        "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"})
    family.other_keys.push_back(key);
  return family;
}

HfFamily ernie4_5_moe() {
  HfFamily family =
      with_ernie_experts(llama_like("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", ernie_keys, ernie_defaults));
  family.aliases = {{"num_experts", "moe_num_experts"}, {"num_experts_per_tok", "moe_k"}};
  family.unread = {"model.mtp_"};
  for (const char* const key : {"moe_layer_start_index", "moe_layer_end_index", "moe_capacity",
                                "num_nextn_predict_layers", "compression_ratio"})
    family.other_keys.push_back(key);
  return family;
}

}  // namespace

std::vector<HfFamily> biased_router_families() {
  return {glm4_moe(), minimax_m2(), ernie4_5_moe()};
}

}  // namespace teratron::gpt_hf_keys
