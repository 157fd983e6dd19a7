// Gemma 2 and Gemma 3 of Hugging Face: norms of inputs and outputs, windows, soft caps or two rotations.
#include "teratron/models/gpt/hf_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;
using nlohmann::json;

namespace {

constexpr RopeTypes gemma3_rope = {.base = 1e6, .local = "rope_local_base_freq", .local_base = 1e4};

template <auto& setting>
void write_cap(std::string_view key, HfConfig& config) {
  write_softcap(key, setting, config);
}
constexpr std::string_view score_cap = "attn_logit_softcapping", logit_cap = "final_logit_softcapping";

void read_gemma3_rope(std::string_view, HfConfig& config) {
  read_rope_types(config, gemma3_rope);
}
void write_gemma3_rope(std::string_view, HfConfig& config) {
  write_rope_types(config, gemma3_rope);
}

// clang-format off

// Keys of both.
const std::vector<HfKey> gemma_keys_of_both = {
    attention_bias, key_is("use_bidirectional_attention", false), setting_is("add_bias_linear", false),
    no_qkv_bias, {"head_dim", "kv_channels", {.otherwise = 256}},
    {"hidden_act", "geglu", {.read = read_gemma_gelu, .write = write_gemma_gelu}},
    setting_is("swiglu", false), setting_is("norm_position", "both"),
    setting_is("scale_embeddings", true), setting_is("apply_layernorm_1p", true),
    {"query_pre_attn_scalar", "softmax_scale", {.read = read_query_scalar, .write = write_query_scalar}},
    {score_cap, score_cap, {.otherwise = 0.0, .write = write_cap<score_cap>}},
    {logit_cap, logit_cap, {.otherwise = 0.0, .write = write_cap<logit_cap>}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};

const std::vector<HfKey> gemma2_keys = {
    {"layer_types", "window_size", {.read = read_window_types<2>, .write = write_window_types}}};
const std::vector<HfKey> gemma3_keys = {
    {"layer_types", "window_size", {.read = read_window_types<6>, .write = write_window_types}},
    {"rope_parameters", "rotary_base", {.read = read_gemma3_rope, .write = write_gemma3_rope}},
    {"", "rotary_base_local", {.export_only = true}}, setting_is("qk_layernorm", true)};

const json gemma2_defaults = {
    {"vocab_size", 256000}, {"hidden_size", 2304}, {"intermediate_size", 9216}, {"num_hidden_layers", 26},
    {"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"max_position_embeddings", 8192},
    {"sliding_window", 4096}, {score_cap, 50.0}, {logit_cap, 30.0}};
const json gemma3_defaults = {
    {"vocab_size", 262208}, {"hidden_size", 2304}, {"intermediate_size", 9216}, {"num_hidden_layers", 26},
    {"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"max_position_embeddings", 131072},
    {"sliding_window", 4096}};

const std::vector<HfTensorRow> gemma_output_norms = {
    {"self_attention.linear_proj.post_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}},
    {"mlp.linear_fc2.post_layernorm.weight", same, {"post_feedforward_layernorm.weight"}, {hidden}}};

// clang-format on

HfFamily gemma(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
               const json& defaults) {
  HfFamily family = llama_like(type, architecture, joined(gemma_keys_of_both, {&own}), defaults);
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  for (HfTensorRow& row : rows) {
    if (row.name == "pre_mlp_layernorm.weight") row.sources = {"pre_feedforward_layernorm.weight"};
  }
  rows.insert(rows.end(), gemma_output_norms.begin(), gemma_output_norms.end());
  for (const char* const key :
       {"hidden_activation", "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"})
    family.other_keys.push_back(key);
  return family;
}

HfFamily gemma3_text() {
  return gemma("gemma3_text", "Gemma3ForCausalLM", gemma3_keys, gemma3_defaults);
}

// The text model of a file with pictures, which has had two names.
HfFamily gemma3() {
  HfFamily family = gemma3_text();
  family.model_type = "gemma3";
  family.architecture = "Gemma3ForConditionalGeneration";
  family.prefix = "model.language_model.";
  family.object = "text_config";
  family.unread = {"model.vision_tower.", "model.multi_modal_projector.", "vision_tower.",
                   "multi_modal_projector."};
  family.old_begins = {{"model.language_model.", "language_model.model."}};
  family.tensors[0].theirs = family.tensors[2].theirs = "model.language_model.";
  family.tensors[1].theirs = "model.language_model.layers.*.";
  return family;
}

}  // namespace

std::vector<HfFamily> gemma_families() {
  return {gemma("gemma2", "Gemma2ForCausalLM", gemma2_keys, gemma2_defaults), gemma3_text(), gemma3()};
}

}  // namespace teratron::gpt_hf_keys
