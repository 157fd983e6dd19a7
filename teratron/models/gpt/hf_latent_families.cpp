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

constexpr std::string_view scaling = "moe_router_topk_scaling_factor", layer_freq = "moe_layer_freq";

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

// --- experts ---

void read_shared(std::string_view key, HfConfig& config) {
  const int64_t experts = config.get(key, 1);
  config.settings[std::string(shared_ffn)] = experts * config.size(expert_ffn);
}
void write_shared(std::string_view key, HfConfig& config) {
  const int64_t width = config.size(expert_ffn), shared = config.size(shared_ffn);
  if (width == 0 || shared == 0 || shared % width != 0)
    return config.problem("{} is not a multiple of {}", shared_ffn, expert_ffn);
  config.keys[key] = shared / width;
}

void set_expert_layers(const std::vector<int64_t>& pattern, HfConfig& config) {
  if (std::ranges::find(pattern, 1) == pattern.end()) return config.problem("no layer has experts");
  config.settings[std::string(layer_freq)] = to_layer_pattern(pattern);
}

void read_dense_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.size("num_layers");
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  const json first = config.has(key) ? config.keys[key] : json(0);
  if (!first.is_number_integer() || first < 0 || first > most_layers) return config.unsupported(key);
  std::vector<int64_t> pattern(static_cast<size_t>(layers), 1);
  std::fill_n(pattern.begin(), std::min(first.get<int64_t>(), layers), 0);
  set_expert_layers(pattern, config);
}
void write_dense_layers(std::string_view key, HfConfig& config) {
  const std::vector<int64_t> pattern = expert_layers(config, config.size("num_layers"));
  const auto first = std::ranges::find(pattern, 1);
  if (std::find(first, pattern.end(), 0) != pattern.end())
    config.problem("{} is {}", layer_freq, config.settings.at(layer_freq).dump());
  config.keys[key] = first - pattern.begin();
}

void read_layer_types(std::string_view key, HfConfig& config) {
  const int64_t layers = config.size("num_layers");
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  std::vector<int64_t> pattern(static_cast<size_t>(layers), 1);
  if (!pattern.empty()) pattern[0] = 0;
  if (config.has(key)) {
    const json& types = config.keys[key];
    const auto is_known = [](const json& type) { return type == "dense" || type == "sparse"; };
    if (!types.is_array() || std::ssize(types) != layers || !std::ranges::all_of(types, is_known))
      return config.unsupported(key);
    std::ranges::transform(types, pattern.begin(), [](const json& type) { return type == "sparse" ? 1 : 0; });
  }
  set_expert_layers(pattern, config);
}
void write_layer_types(std::string_view key, HfConfig& config) {
  json types = json::array();
  for (const int64_t experts : expert_layers(config, config.size("num_layers")))
    types.push_back(experts != 0 ? "sparse" : "dense");
  config.keys[key] = types;
}

void read_scaling(HfConfig& config, double otherwise) {
  const double factor = config.get("routed_scaling_factor", otherwise);
  if (factor != 1.0) config.settings[std::string(scaling)] = factor;
}
void write_scaling(HfConfig& config) {
  const json& factor = config.settings.at(scaling);
  config.keys["routed_scaling_factor"] = factor.is_null() ? json(1.0) : factor;
}

// `of_group`: how many of a group's best scores, added, are its score.
void read_groups(HfConfig& config, int64_t of_group) {
  const int64_t groups = config.get("n_group", 1), chosen = config.get("topk_group", 1);
  if (groups == 1) return;
  config.settings.update({{"moe_router_num_groups", groups}, {"moe_router_group_topk", chosen}});
  const int64_t usual = config.get("num_experts_per_tok", nullptr).get<int64_t>();  // for all chosen groups
  if (usual != of_group * chosen) config.settings["moe_router_group_score_topk"] = of_group;
}
void write_groups(HfConfig& config, int64_t of_group) {
  const int64_t groups = std::max<int64_t>(config.size("moe_router_num_groups"), 1);
  const int64_t chosen = std::max<int64_t>(config.size("moe_router_group_topk"), 1);
  const int64_t given = config.size("moe_router_group_score_topk");
  if (groups > 1 && (given > 0 ? given : config.size("moe_router_topk") / chosen) != of_group)
    config.problem("the score of a group of experts is not the sum of the best {}", of_group);
  config.keys.update({{"n_group", groups}, {"topk_group", chosen}});
}

// Scores of one expert alone are not divided here, but there.
void read_v3_router(std::string_view key, HfConfig& config) {
  const bool normalizes = config.get(key, true), several = config.get("num_experts_per_tok", 8) > 1;
  if (normalizes && !several) config.unsupported(key);
  config.settings.update({{"moe_router_score_function", "sigmoid"},
                          {"moe_router_enable_expert_bias", true},
                          {"moe_router_unnormalized", !normalizes && several}});
  read_scaling(config, 1.0);
  read_groups(config, 2);
}
void write_v3_router(std::string_view key, HfConfig& config) {
  refuse_unless(config, "moe_router_score_function", "sigmoid");
  refuse_unless(config, "moe_router_enable_expert_bias", true);
  config.keys[key] = config.size("moe_router_topk") > 1 && !config.is_set("moe_router_unnormalized");
  write_scaling(config);
  write_groups(config, 2);
}

void read_v2_router(std::string_view key, HfConfig& config) {
  const std::string method = config.get(key, "greedy");
  if (method != "greedy" && method != "group_limited_greedy") config.unsupported(key);
  if (config.get("norm_topk_prob", false) == true) config.unsupported("norm_topk_prob");
  config.settings.update({{"moe_router_score_function", "softmax"}, {"moe_router_pre_softmax", true}});
  read_scaling(config, 1.0);
  if (method != "greedy") read_groups(config, 1);
}
void write_v2_router(std::string_view key, HfConfig& config) {
  refuse_unless(config, "moe_router_score_function", "softmax");
  refuse_unless(config, "moe_router_enable_expert_bias", false);
  refuse_unless(config, "moe_router_pre_softmax", true);
  write_scaling(config);
  write_groups(config, 1);
  const bool grouped = config.keys["n_group"] > 1;
  config.keys.update({{std::string(key), grouped ? "group_limited_greedy" : "greedy"},
                      {"norm_topk_prob", false},
                      {"scoring_func", "softmax"}});
}

void read_no_mtp(std::string_view, HfConfig& config) {  // by the tensors
  config.settings["mtp_num_layers"] = nullptr;
}
void write_mtp(std::string_view key, HfConfig& config) {
  config.keys[key] = config.size("mtp_num_layers");
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

const std::vector<HfTensorRow> mtp_rows = {
    {"enorm.weight", same, {"enorm.weight"}, {hidden}}, {"hnorm.weight", same, {"hnorm.weight"}, {hidden}},
    {"eh_proj.weight", same, {"eh_proj.weight"}, {hidden, "2*hidden_size"}},
    {"final_layernorm.weight", same, {"shared_head.norm.weight"}, {hidden}},
    {"embedding.word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, {.repeats = true}},
    {"output_layer.weight", same, {"shared_head.head.weight"}, {vocab, hidden}, {.when = {untied}, .repeats = true}}};

const std::vector<HfKey> latent_keys = {
    {"num_nextn_predict_layers", "mtp_num_layers", {.read = read_no_mtp, .write = write_mtp}},
    setting_is("multi_latent_attention", true), setting_is("qk_layernorm", true),
    {"num_key_value_heads", "num_query_groups", {.read = read_all_heads, .write = write_all_heads}},
    {"head_dim", "kv_channels", {.read = read_head_width, .write = write_head_width}},
    {"q_lora_rank", "q_lora_rank", {.read = read_query_rank, .write = write_query_rank}},
    {"kv_lora_rank", "kv_lora_rank"}, {"qk_nope_head_dim", "qk_head_dim"}, {"qk_rope_head_dim", "qk_pos_emb_head_dim"},
    {"v_head_dim", "v_head_dim"}, attention_bias, no_qkv_bias, setting_is("add_bias_linear", false),
    {"rope_parameters", "rotary_base", {.read = read_latent_rope, .write = write_latent_rope}},
    {"", "window_size", no_windows},
    {"n_routed_experts", "num_experts"}, {"num_experts_per_tok", "moe_router_topk"}, {"moe_intermediate_size", expert_ffn},
    {"n_shared_experts", shared_ffn, {.read = read_shared, .write = write_shared}},
    {"", "moe_router_dtype", {.otherwise = "fp32"}}, only_without("moe_shared_expert_gate")};

const std::vector<HfKey> v3_keys = {
    key_is("scoring_func", "sigmoid"), key_is("topk_method", "noaux_tc"), key_is("moe_layer_freq", 1),
    {"rope_interleave", "latent_rotary_halves", {.otherwise = true, .negate = true}},
    {"first_k_dense_replace", layer_freq, {.read = read_dense_layers, .write = write_dense_layers}},
    {"norm_topk_prob", "moe_router_score_function", {.read = read_v3_router, .write = write_v3_router}},
    {"", "moe_router_unnormalized", {.export_only = true}}};
const std::vector<HfKey> v2_keys = {
    key_is("mlp_bias", false), key_is("scoring_func", "softmax"), key_is("moe_layer_freq", 1),
    setting_is("latent_rotary_halves", false),
    {"first_k_dense_replace", layer_freq, {.read = read_dense_layers, .write = write_dense_layers}},
    {"topk_method", "moe_router_score_function", {.read = read_v2_router, .write = write_v2_router}}};
const std::vector<HfKey> lite_keys = {
    key_is("topk_method", "noaux_tc"), key_is("scoring_func", "sigmoid"),
    {"rope_interleave", "latent_rotary_halves", {.otherwise = true, .negate = true}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"mlp_layer_types", layer_freq, {.read = read_layer_types, .write = write_layer_types}},
    {"norm_topk_prob", "moe_router_score_function", {.read = read_v3_router, .write = write_v3_router}},
    {"", "moe_router_unnormalized", {.export_only = true}}};

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

// After all layers, before the final norm's group.
void add_mtp(HfFamily& family) {
  family.mtp_sign = "model.layers.*.eh_proj.weight";
  const std::vector<HfTensorRow> layer = family.tensors[1].rows;
  const HfTensorGroup own{"mtp.layers.*.",  "model.layers.*.", mtp_rows,
                          "mtp_num_layers", HfLayers::all,     "num_layers"},
      layers{"mtp.layers.*.mtp_model_layer.",
             "model.layers.*.",
             layer,
             "mtp_num_layers",
             HfLayers::all,
             "num_layers"};
  family.tensors.insert(family.tensors.end(), {own, layers});
}

HfFamily latent_family(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
                       const json& defaults) {
  std::vector<HfKey> keys = joined(latent_keys, {&own});
  keys.push_back({"", "latent_norm_epsilon", {.read = read_latent_epsilon, .write = write_latent_epsilon}});
  HfFamily family = llama_like(type, architecture, keys, defaults);
  replace_rows(family, "self_attention.", attention_rows);
  family = with_deepseek_experts(std::move(family), type != "deepseek_v2");
  family.layer_kinds = layer_kinds;
  if (type != "deepseek_v2") add_mtp(family);
  for (const char* const key : {"qk_head_dim", "n_group", "topk_group", "routed_scaling_factor",
                                "norm_topk_prob", "scoring_func", "aux_loss_alpha", "ep_size", "seq_aux"})
    family.other_keys.push_back(key);
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
