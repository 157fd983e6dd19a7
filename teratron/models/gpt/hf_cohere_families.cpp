// GPT's model_types of Hugging Face whose norms have fewer parameters, or none: Command R, Command R7B,
// nanochat.
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/models/gpt/hf_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

// Layers with a window have a rotation, the others none.
void read_cohere_layers(std::string_view key, HfConfig& config) {
  read_window_types<4>(key, config);
  for (const char* const setting : {"window_size", "window_attn_skip_freq"})
    config.settings.emplace(setting, nullptr);
  std::vector<int64_t> without;
  for (const int64_t window : window_layers(config)) without.push_back(window > 0 ? 0 : 1);
  if (std::ranges::find(without, 1) != without.end())
    config.settings["no_rope_freq"] = fmt::format("[{}]", fmt::join(without, ","));
}
void write_cohere_layers(std::string_view key, HfConfig& config) {
  write_window_types(key, config);
  HfConfig rotations{.settings = config.settings};
  write_no_rope_layers("with", rotations);
  config.problems.insert(config.problems.end(), rotations.problems.begin(), rotations.problems.end());
  if (!rotations.problems.empty()) return;
  const json& types = config.keys[key];
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if ((types[layer] == "sliding_attention") != (rotations.keys["with"][layer] == 1))
      return config.problem("layers with a window are not those with a rotation");
  }
}

constexpr std::string_view nanochat_cap = "final_logit_softcapping";
void write_nanochat_cap(std::string_view key, HfConfig& config) {
  write_softcap(key, nanochat_cap, config);
}

// clang-format off

const std::vector<HfKey> keys_of_both = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, setting_is("normalization", "LayerNorm"),
    setting_is("norm_weights", "no-bias"), {"layer_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    setting_is("parallel_residual", true), setting_is("parallel_residual_one_norm", true),
    setting_is("rotary_interleaved", true), {"logit_scale", "logits_multiplier", {.otherwise = 0.0625}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}},
    key_is("use_embedding_sharing", true), key_is("use_gated_activation", true), key_is("use_parallel_block", true),
    key_is("position_embedding_type", "rope_gptj"), key_is("rotary_pct", 1.0)};
const std::vector<HfKey> cohere_keys = {
    {"use_qk_norm", "qk_layernorm", {.otherwise = false}}, {"use_qk_norm", "qk_layernorm_per_head", {.otherwise = false}},
    {"", "window_size", no_windows}};
const std::vector<HfKey> cohere2_keys = {
    only_without("qk_layernorm"),
    {"layer_types", "window_size", {.read = read_cohere_layers, .write = write_cohere_layers}},
    {"", "no_rope_freq", {.export_only = true}}, key_is("order_of_interleaved_layers", "local_attn_first")};
const json cohere_defaults = {
    {"vocab_size", 256000}, {"hidden_size", 8192}, {"intermediate_size", 22528}, {"num_hidden_layers", 40},
    {"num_attention_heads", 64}, {"max_position_embeddings", 8192}, {"rope_theta", 5e5}};
const json cohere2_defaults = {
    {"vocab_size", 256000}, {"hidden_size", 8192}, {"intermediate_size", 22528}, {"num_hidden_layers", 40},
    {"num_attention_heads", 64}, {"max_position_embeddings", 8192}, {"sliding_window", 4096}};

const std::vector<HfKey> nanochat_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, setting_is("norm_weights", "none"),
    setting_is("embedding_layernorm", true), only_without("qk_layernorm"), setting_is("qk_l2_norm", true),
    setting_is("rotary_reversed", true), {"", "window_size", no_windows}, setting_is("swiglu", false),
    {"hidden_act", "squared_relu", {.otherwise = "relu2", .values = {{"relu2", true}}}},
    {nanochat_cap, nanochat_cap, {.otherwise = 0.0, .write = write_nanochat_cap}}};
const json nanochat_defaults = {
    {"vocab_size", 50304}, {"hidden_size", 768}, {"intermediate_size", 8192}, {"num_hidden_layers", 12},
    {"num_attention_heads", 6}, {"max_position_embeddings", 2048}, {nanochat_cap, 15.0}};
const std::vector<HfTensorRow> nanochat_mlp = {
    {"mlp.linear_fc1.weight", same, {"mlp.fc1.weight"}, {ffn, hidden}},
    {"mlp.linear_fc2.weight", same, {"mlp.fc2.weight"}, {hidden, ffn}}};

// clang-format on

HfFamily cohere_like(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
                     const json& defaults) {
  HfFamily family = llama_like(type, architecture, joined(keys_of_both, {&own}), defaults);
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  std::erase_if(rows, [](const HfTensorRow& row) { return row.name == "pre_mlp_layernorm.weight"; });
  for (HfTensorRow& row : rows) {
    if (row.name == "self_attention.q_layernorm.weight") row.shape = {heads, "kv_channels"};
    if (row.name == "self_attention.k_layernorm.weight")
      row.rule = key_heads, row.shape = {heads, "kv_channels"};
  }
  for (const char* const key :
       {"use_parallel_embedding", "layer_switch", "sliding_window_pattern", "_sliding_window_pattern"})
    family.other_keys.push_back(key);
  return family;
}

HfFamily nanochat() {
  HfFamily family = llama_like("nanochat", "NanoChatForCausalLM", nanochat_keys, nanochat_defaults);
  replace_rows(family, "mlp.", nanochat_mlp);
  std::erase_if(family.tensors[1].rows,
                [](const HfTensorRow& row) { return row.name.ends_with("_layernorm.weight"); });
  family.tensors.erase(family.tensors.begin() + 2);  // the final norm
  return family;
}

}  // namespace

std::vector<HfFamily> cohere_families() {
  return {cohere_like("cohere", "CohereForCausalLM", cohere_keys, cohere_defaults),
          cohere_like("cohere2", "Cohere2ForCausalLM", cohere2_keys, cohere2_defaults), nanochat()};
}

}  // namespace teratron::gpt_hf_keys
