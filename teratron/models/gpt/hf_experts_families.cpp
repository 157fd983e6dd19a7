// GPT's model_types of Hugging Face with experts: Mixtral, Qwen2-MoE, Qwen3-MoE. Attention is as in Llama.
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_experts_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

// transformers 5 writes num_local_experts, published files have num_experts.
void write_qwen3_experts(std::string_view key, HfConfig& config) {
  const json& experts = config.settings.at("num_experts");
  if (experts.is_null()) return config.problem("num_experts is not set");
  config.keys.update({{std::string(key), experts}, {"num_local_experts", experts}});
}

// Every decoder_sparse_step-th layer has experts, counted from 1, but those of mlp_only_layers.
void read_sparse_layers(std::string_view key, HfConfig& config) {
  const int64_t step = config.get(key, 1), layers = config.size("num_layers");
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  const json only = config.get("mlp_only_layers", json::array());
  std::vector<int64_t> pattern;
  for (int64_t layer = 0; layer < layers; ++layer)
    pattern.push_back((layer + 1) % step == 0 && std::ranges::find(only, json(layer)) == only.end() ? 1 : 0);
  if (std::ranges::find(pattern, 1) == pattern.end()) return config.problem("no layer has experts");
  config.settings["moe_layer_freq"] = to_layer_pattern(pattern);
}

void write_sparse_layers(std::string_view key, HfConfig& config) {
  json only = json::array();
  const std::vector<int64_t> pattern = expert_layers(config, config.size("num_layers"));
  for (size_t layer = 0; layer < pattern.size(); ++layer) {
    if (pattern[layer] == 0) only.push_back(layer);
  }
  config.keys.update({{std::string(key), 1}, {"mlp_only_layers", only}});
}

// clang-format off

const std::vector<HfKey> attention_keys = {
    key_is("mlp_bias", false), setting_is("add_bias_linear", false),
    {"", "moe_router_score_function", {.export_only = true, .write = write_plain_router}}};

const std::vector<HfKey> mixtral_keys = {
    key_is("attention_bias", false),
    {"intermediate_size", ffn, {.read = read_expert_ffn, .write = write_expert_ffn}},
    {"num_local_experts", "num_experts", {.otherwise = 8}},
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 2}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    setting_is("moe_router_pre_softmax", false),
    {"", "moe_layer_freq", {.export_only = true, .write = write_all_sparse}},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}}, setting_is("add_qkv_bias", false),
    only_without("qk_layernorm"),
    {"sliding_window", "window_size", windows}};

const std::vector<HfKey> qwen_moe_keys = {
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 8}}, {"moe_intermediate_size", expert_ffn},
    {"norm_topk_prob", "moe_router_pre_softmax", {.read = read_normalized, .write = write_normalized}},
    {"decoder_sparse_step", "moe_layer_freq", {.read = read_sparse_layers, .write = write_sparse_layers}}};
const std::vector<HfKey> qwen2_moe_keys = {
    key_is("attention_bias", false),
    {"num_experts", "num_experts", {.otherwise = 60}}, {"shared_expert_intermediate_size", shared_ffn},
    setting_is("moe_shared_expert_gate", true), {"qkv_bias", "add_qkv_bias", {.otherwise = true}},
    only_without("qk_layernorm"),
    {"layer_types", "window_size", {.read = read_alternating_windows, .write = write_windows}}};
const std::vector<HfKey> qwen3_moe_keys = {
    attention_bias,
    {"num_experts", "num_experts", {.otherwise = 128, .write = write_qwen3_experts}},
    key_is("use_sliding_window", false), {"", "window_size", no_windows},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}},
    no_qkv_bias, setting_is("qk_layernorm", true)};

const std::vector<HfKey> olmoe_keys = {
    attention_bias, {"intermediate_size", ffn, {.read = read_expert_ffn, .write = write_expert_ffn}},
    {"num_experts", "num_experts", {.otherwise = 64}},
    {"num_experts_per_tok", "moe_router_topk", {.otherwise = 8}},
    {"norm_topk_prob", "moe_router_pre_softmax", {.read = read_normalized, .write = write_normalized}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"", "moe_layer_freq", {.export_only = true, .write = write_all_sparse}},
    {"", shared_ffn, {.export_only = true, .write = write_no_shared}}, no_qkv_bias,
    {"", "window_size", no_windows}, setting_is("qk_layernorm", true), setting_is("qk_layernorm_all_heads", true)};
const json olmoe_defaults = {
    {"vocab_size", 50304}, {"hidden_size", 2048}, {"intermediate_size", 2048}, {"num_hidden_layers", 16},
    {"num_attention_heads", 16}, {"max_position_embeddings", 4096}};

const std::vector<HfKey> qwen3_next_keys = {
    {"num_experts", "num_experts", {.otherwise = 512}}, {"shared_expert_intermediate_size", shared_ffn},
    setting_is("moe_shared_expert_gate", true)};

const json mixtral_defaults = {
    {"vocab_size", 32000}, {"hidden_size", 4096}, {"intermediate_size", 14336}, {"num_hidden_layers", 32},
    {"num_attention_heads", 32}, {"num_key_value_heads", 8}, {"max_position_embeddings", 131072},
    {"rope_theta", 1e6}};
const json qwen2_moe_defaults = {
    {"vocab_size", 151936}, {"hidden_size", 2048}, {"intermediate_size", 5632}, {"num_hidden_layers", 24},
    {"num_attention_heads", 16}, {"num_key_value_heads", 16}, {"max_position_embeddings", 32768},
    {"moe_intermediate_size", 1408}, {"shared_expert_intermediate_size", 5632}, {"num_experts_per_tok", 4},
    {"sliding_window", 4096}};
const json qwen3_moe_defaults = {
    {"vocab_size", 151936}, {"hidden_size", 2048}, {"intermediate_size", 6144}, {"num_hidden_layers", 24},
    {"num_attention_heads", 32}, {"num_key_value_heads", 4}, {"max_position_embeddings", 32768},
    {"moe_intermediate_size", 768}};

const HfTensorOptions in_experts = {.in = "experts"};

const std::vector<HfTensorRow> mixtral_experts = {
    {"mlp.router.weight", same, {"block_sparse_moe.gate.weight"}, {"num_experts", hidden}, in_experts},
    {"mlp.experts.#.linear_fc1.weight", concat,
     {"block_sparse_moe.experts.#.w1.weight", "block_sparse_moe.experts.#.w3.weight"}, {expert_ffn, hidden},
     in_experts},
    {"mlp.experts.#.linear_fc2.weight", same, {"block_sparse_moe.experts.#.w2.weight"}, {hidden, expert_ffn},
     in_experts}};
const std::vector<HfTensorRow> qwen_experts = {
    {"mlp.router.weight", same, {"mlp.gate.weight"}, {"num_experts", hidden}, in_experts},
    {"mlp.experts.#.linear_fc1.weight", concat,
     {"mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight"}, {expert_ffn, hidden}, in_experts},
    {"mlp.experts.#.linear_fc2.weight", same, {"mlp.experts.#.down_proj.weight"}, {hidden, expert_ffn},
     in_experts}};
const std::vector<HfTensorRow> deepseek_shared = {
    {"mlp.shared_experts.linear_fc1.weight", concat,
     {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"}, {shared_ffn, hidden},
     {.in = "shared experts"}},
    {"mlp.shared_experts.linear_fc2.weight", same, {"mlp.shared_experts.down_proj.weight"},
     {hidden, shared_ffn}, {.in = "shared experts"}}};
const std::vector<HfTensorRow> minimax_bias = {
    {"mlp.router.expert_bias", same, {"block_sparse_moe.e_score_correction_bias"}, {"num_experts"},
     {.in = "experts", .f32 = true}}};
// The router is in f32 in all files.
const std::vector<HfTensorRow> ernie_experts = {
    {"mlp.router.weight", same, {"mlp.gate.weight"}, {"num_experts", hidden}, {.in = "experts", .f32 = true}},
    {"mlp.router.expert_bias", same, {"mlp.moe_statics.e_score_correction_bias"}, {"num_experts"},
     {.in = "experts", .f32 = true, .one_row = true}}};
const std::vector<HfTensorRow> correction_bias = {
    {"mlp.router.expert_bias", same, {"mlp.gate.e_score_correction_bias"}, {"num_experts"},
     {.in = "experts", .f32 = true}}};
const std::vector<HfTensorRow> shared_experts = {
    {"mlp.shared_experts.linear_fc1.weight", concat,
     {"mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"}, {shared_ffn, hidden},
     in_experts},
    {"mlp.shared_experts.linear_fc2.weight", same, {"mlp.shared_expert.down_proj.weight"},
     {hidden, shared_ffn}, in_experts},
    {"mlp.shared_experts.gate_weight", same, {"mlp.shared_expert_gate.weight"}, {"1", hidden}, in_experts}};

// clang-format on

// transformers 5 calls all blocks of experts "mlp" in memory.
const std::vector<HfFusedExperts> mixtral_fused = {
    {"mlp.experts.gate_up_proj",
     {"block_sparse_moe.experts.#.w1.weight", "block_sparse_moe.experts.#.w3.weight"}},
    {"mlp.experts.down_proj", {"block_sparse_moe.experts.#.w2.weight"}},
    {"block_sparse_moe.experts.gate_up_proj",
     {"block_sparse_moe.experts.#.w1.weight", "block_sparse_moe.experts.#.w3.weight"}},
    {"block_sparse_moe.experts.down_proj", {"block_sparse_moe.experts.#.w2.weight"}}};
const std::vector<HfFusedExperts> qwen_fused = {
    {"mlp.experts.gate_up_proj", {"mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight"}},
    {"mlp.experts.down_proj", {"mlp.experts.#.down_proj.weight"}}};

HfFamily with_experts(HfFamily family, std::initializer_list<const std::vector<HfTensorRow>*> experts) {
  const bool mixtral = family.model_type == "mixtral" || family.model_type == "minimax_m2";
  family.layer_kinds = experts_kinds;
  family.fused_experts = mixtral ? mixtral_fused : qwen_fused;
  for (const char* const training : {"router_aux_loss_coef", "output_router_logits", "mlp_only_layers"})
    family.other_keys.push_back(training);
  if (mixtral)
    family.old_ends = {{"block_sparse_moe.gate.weight", "mlp.gate.weight"},
                       {"block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"}};
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  for (HfTensorRow& row : rows) {
    if (row.name.starts_with("mlp.")) row.options.in = "mlp";
  }
  for (const std::vector<HfTensorRow>* list : experts) rows.insert(rows.end(), list->begin(), list->end());
  return family;
}

}  // namespace

std::vector<HfKey> qwen_next_experts_keys() {
  return joined(attention_keys, {&qwen_moe_keys, &qwen3_next_keys});
}

HfFamily with_qwen_experts(HfFamily family) {
  return with_experts(std::move(family), {&qwen_experts, &shared_experts});
}

HfFamily with_deepseek_experts(HfFamily family, bool has_bias) {
  if (has_bias) return with_experts(std::move(family), {&qwen_experts, &correction_bias, &deepseek_shared});
  return with_experts(std::move(family), {&qwen_experts, &deepseek_shared});
}

HfFamily with_minimax_experts(HfFamily family) {
  return with_experts(std::move(family), {&mixtral_experts, &minimax_bias});
}

HfFamily with_ernie_experts(HfFamily family) {
  const std::vector<HfTensorRow> experts(qwen_experts.begin() + 1, qwen_experts.end());
  return with_experts(std::move(family), {&ernie_experts, &experts, &deepseek_shared});
}

void with_norms_of_all_heads(HfFamily& family) {
  for (HfTensorRow& row : family.tensors[1].rows) {
    if (row.name == "self_attention.q_layernorm.weight") row.shape = {queries};
    if (row.name == "self_attention.k_layernorm.weight") row.rule = HfRule::keys, row.shape = {queries};
  }
}

std::vector<HfFamily> experts_families() {
  HfFamily mixtral =
      llama_like("mixtral", "MixtralForCausalLM", joined(attention_keys, {&mixtral_keys}), mixtral_defaults);
  HfFamily qwen2 = llama_like("qwen2_moe", "Qwen2MoeForCausalLM",
                              joined(attention_keys, {&qwen_moe_keys, &qwen2_moe_keys}), qwen2_moe_defaults);
  HfFamily qwen3 = llama_like("qwen3_moe", "Qwen3MoeForCausalLM",
                              joined(attention_keys, {&qwen_moe_keys, &qwen3_moe_keys}), qwen3_moe_defaults);
  HfFamily olmoe =
      llama_like("olmoe", "OlmoeForCausalLM", joined(attention_keys, {&olmoe_keys}), olmoe_defaults);
  olmoe.aliases = {{"num_local_experts", "num_experts"}};
  with_norms_of_all_heads(olmoe);
  mixtral.aliases = {{"num_experts", "num_local_experts"}};
  qwen3.aliases = {{"num_local_experts", "num_experts"}};
  return {with_experts(std::move(mixtral), {&mixtral_experts}),
          with_experts(std::move(qwen2), {&qwen_experts, &shared_experts}),
          with_experts(std::move(qwen3), {&qwen_experts}), with_experts(std::move(olmoe), {&qwen_experts})};
}

}  // namespace teratron::gpt_hf_keys
