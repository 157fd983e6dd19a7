// Experts as DeepSeek's models have them: dense layers first, shared experts, routers with groups and biases;
// layers that predict further tokens.
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/models/gpt/hf_experts_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

// Megatron-LM divides the scores of several experts alone.
void read_sigmoid_router(bool normalizes, HfConfig& config) {
  const bool several = config.get("num_experts_per_tok", 8) > 1;
  config.settings.update({{"moe_router_score_function", "sigmoid"},
                          {"moe_router_enable_expert_bias", true},
                          {"moe_router_unnormalized", !normalizes && several},
                          {"moe_router_normalize_one", normalizes && !several}});
}

bool write_sigmoid_router(HfConfig& config) {
  refuse_unless(config, "moe_router_score_function", "sigmoid");
  refuse_unless(config, "moe_router_enable_expert_bias", true);
  const bool several = config.size("moe_router_topk") > 1;
  return several ? !config.is_set("moe_router_unnormalized") : config.is_set("moe_router_normalize_one");
}

void set_expert_layers(const std::vector<int64_t>& pattern, HfConfig& config) {
  if (std::ranges::find(pattern, 1) == pattern.end()) return config.problem("no layer has experts");
  config.settings["moe_layer_freq"] = to_layer_pattern(pattern);
}

namespace {

constexpr std::string_view scaling = "moe_router_topk_scaling_factor", layer_freq = "moe_layer_freq";

void read_shared(std::string_view key, HfConfig& config) {
  if (config.has(key) && config.keys[key] == 0) return;
  const int64_t experts = config.get(key, 1);
  config.settings[std::string(shared_ffn)] = experts * config.size(expert_ffn);
}
void write_shared(std::string_view key, HfConfig& config) {
  const int64_t width = config.size(expert_ffn), shared = config.size(shared_ffn);
  if (config.settings.at(shared_ffn).is_null()) {
    config.keys[key] = 0;
    return;
  }
  if (width == 0 || shared == 0 || shared % width != 0)
    return config.problem("{} is not a multiple of {}", shared_ffn, expert_ffn);
  config.keys[key] = shared / width;
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

void read_mlp_types(std::string_view key, HfConfig& config) {
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
void write_mlp_types(std::string_view key, HfConfig& config) {
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

void read_v3_router(std::string_view key, HfConfig& config) {
  read_sigmoid_router(config.get(key, true), config);
  read_scaling(config, 1.0);
  read_groups(config, 2);
}
void write_v3_router(std::string_view key, HfConfig& config) {
  config.keys[key] = write_sigmoid_router(config);
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

// clang-format off
const std::vector<HfTensorRow> mtp_rows = {
    {"enorm.weight", same, {"enorm.weight"}, {hidden}}, {"hnorm.weight", same, {"hnorm.weight"}, {hidden}},
    {"eh_proj.weight", same, {"eh_proj.weight"}, {hidden, "2*hidden_size"}},
    {"final_layernorm.weight", same, {"shared_head.norm.weight"}, {hidden}},
    {"embedding.word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, {.repeats = true}},
    {"output_layer.weight", same, {"shared_head.head.weight"}, {vocab, hidden}, {.when = {untied}, .repeats = true}}};

// clang-format on

}  // namespace

// clang-format off
HfKey shared_experts_key(std::string_view key) {
  return {key, shared_ffn, {.read = read_shared, .write = write_shared}};
}

std::vector<HfKey> deepseek_experts_keys() {
  return {{"num_nextn_predict_layers", "mtp_num_layers", {.read = read_no_mtp, .write = write_mtp}},
          {"n_routed_experts", "num_experts"}, {"num_experts_per_tok", "moe_router_topk"},
          {"moe_intermediate_size", expert_ffn},
          shared_experts_key("n_shared_experts"),
          {"", "moe_router_dtype", {.otherwise = "fp32"}}, only_without("moe_shared_expert_gate")};
}

std::vector<HfKey> v3_router_keys() {
  return {key_is("scoring_func", "sigmoid"), key_is("topk_method", "noaux_tc"),
          {"norm_topk_prob", "moe_router_score_function", {.read = read_v3_router, .write = write_v3_router}},
          {"", "moe_router_unnormalized", {.export_only = true}},
          {"", "moe_router_normalize_one", {.export_only = true}}};
}

std::vector<HfKey> v2_router_keys() {
  return {key_is("scoring_func", "softmax"),
          {"topk_method", "moe_router_score_function", {.read = read_v2_router, .write = write_v2_router}}};
}

std::vector<HfKey> first_dense_keys() {
  return {key_is("moe_layer_freq", 1),
          {"first_k_dense_replace", layer_freq, {.read = read_dense_layers, .write = write_dense_layers}}};
}

std::vector<HfKey> mlp_types_keys() {
  return {{"mlp_layer_types", layer_freq, {.read = read_mlp_types, .write = write_mlp_types}}};
}
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

void add_deepseek_other_keys(HfFamily& family) {
  for (const char* const key : {"qk_head_dim", "n_group", "topk_group", "routed_scaling_factor",
                                "norm_topk_prob", "scoring_func", "aux_loss_alpha", "ep_size", "seq_aux"})
    family.other_keys.push_back(key);
}

}  // namespace teratron::gpt_hf_keys
