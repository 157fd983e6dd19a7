// GPT in files of other programs: Hugging Face's GPT-2, Llama, Mistral, Qwen2 (and 2.5), Qwen3, Gemma,
// OLMo 2 and 3 (hf_*_families.cpp have more), and Megatron-LM's checkpoints.
#include "teratron/models/family_formats.h"
#include "teratron/models/gpt/hf_keys.h"
#include "teratron/models/gpt/hf_layer_keys.h"
#include "teratron/models/megatron_rows.h"

namespace teratron {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;
using namespace gpt_hf_keys;

namespace {

void read_olmo3_rope(std::string_view, HfConfig& config) {
  read_rope_types(config, {.base = 5e5});
}
void write_olmo3_rope(std::string_view, HfConfig& config) {
  write_rope_types(config, {.base = 5e5});
}

// clang-format off

const HfTensorOptions qk_norm = {.when = {"qk_layernorm"}};
const HfTensorOptions qkv_biased = {.bias = {"add_bias_linear", "add_attention_bias", "add_qkv_bias"}};
const HfTensorOptions attention_biased = {.bias = {"add_bias_linear", "add_attention_bias"}};
const HfTensorGroup head = {"", "",
    {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {{untied}}}}};

const std::vector<HfKey> gpt2_keys = {
    {"n_layer", "num_layers"}, {"n_embd", hidden}, {"n_head", heads}, {"", "num_query_groups", groups},
    {"", "kv_channels", head_size}, {"n_inner", ffn, {.derived = "4*hidden_size"}},
    {"n_positions", positions}, {"n_ctx", positions, {.export_only = true}},
    setting_is("position_embedding_type", "learned_absolute"), {"", "window_size", no_windows},
    setting_is("normalization", "LayerNorm"), {"layer_norm_epsilon", "norm_epsilon", {.otherwise = 1e-5}},
    {"activation_function", "bias_gelu_fusion",
     {.otherwise = "gelu_new", .values = gelu_names, .write = write_gelu}},
    setting_is("swiglu", false), setting_is("add_bias_linear", true),
    {"", "add_qkv_bias", {.otherwise = false}}, only_without("qk_layernorm"),
    {"attn_pdrop", "attention_dropout", {.otherwise = 0.1}},
    {"resid_pdrop", "hidden_dropout", {.otherwise = 0.1}},
    {"embd_pdrop", "hidden_dropout", {.otherwise = 0.1, .export_only = true}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}},
    key_is("scale_attn_weights", true), key_is("scale_attn_by_inverse_layer_idx", false),
    key_is("add_cross_attention", false),
    {"vocab_size", vocab, embedded},
    {"eos_token_id", vocab, {.export_only = true, .write = write_special_tokens}}};

const std::vector<HfTensorGroup> gpt2_tensors = {
    {"embedding.", "transformer.", {
        {"word_embeddings.weight", same, {"wte.weight"}, {vocab, hidden}, copied},
        {"position_embeddings.weight", same, {"wpe.weight"}, {positions, hidden}}}},
    {"decoder.layers.*.", "transformer.h.*.", {
        {"input_layernorm.weight", same, {"ln_1.weight"}, {hidden}, biased},
        {"self_attention.linear_qkv.weight", qkv_fused, {"attn.c_attn.weight"}, {queries, hidden}, biased},
        {"self_attention.linear_proj.weight", transpose, {"attn.c_proj.weight"}, {hidden, hidden}, biased},
        {"pre_mlp_layernorm.weight", same, {"ln_2.weight"}, {hidden}, biased},
        {"mlp.linear_fc1.weight", transpose, {"mlp.c_fc.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", transpose, {"mlp.c_proj.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "transformer.", {{"final_layernorm.weight", same, {"ln_f.weight"}, {hidden}, biased}}},
    head};

const std::vector<HfKey> llama_keys = {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"intermediate_size", ffn},
    {"vocab_size", vocab, embedded},
    {"num_attention_heads", heads}, {"num_key_value_heads", "num_query_groups", groups},
    {"head_dim", "kv_channels", head_size},
    {"max_position_embeddings", positions, {.otherwise = 2048}},
    {"rope_parameters", "rotary_base", {.read = read_rope, .write = write_rope}},
    setting_is("normalization", "RMSNorm"), {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-6}},
    {"hidden_act", "swiglu", {.otherwise = "silu", .values = {{"silu", true}}}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"", "hidden_dropout", {.otherwise = 0.0}},
    {"tie_word_embeddings", untied, {.otherwise = false, .negate = true}}};

const std::vector<HfTensorGroup> llama_tensors = {
    {"embedding.", "model.",
     {{"word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, copied}}},
    {"decoder.layers.*.", "model.layers.*.", {
        {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}},
        {"self_attention.linear_qkv.weight", qkv_grouped,
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {queries, hidden},
         qkv_biased},
        {"self_attention.linear_proj.weight", same, {"self_attn.o_proj.weight"}, {hidden, queries},
         attention_biased},
        {"self_attention.q_layernorm.weight", same, {"self_attn.q_norm.weight"}, {"kv_channels"}, qk_norm},
        {"self_attention.k_layernorm.weight", same, {"self_attn.k_norm.weight"}, {"kv_channels"}, qk_norm},
        {"pre_mlp_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}},
        {"mlp.linear_fc1.weight", concat, {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, {ffn, hidden},
         biased},
        {"mlp.linear_fc2.weight", same, {"mlp.down_proj.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "model.", {{"final_layernorm.weight", same, {"norm.weight"}, {hidden}}}},
    head};

// Model types like Llama, which differ in keys and settings alone.
const std::vector<HfKey> qwen3_keys = {
    key_is("mlp_bias", false), attention_bias, setting_is("add_bias_linear", false), no_qkv_bias,
    setting_is("qk_layernorm", true), {"layer_types", "window_size", windows}};
const std::vector<HfKey> qwen2_keys = {
    setting_is("add_bias_linear", false), setting_is("add_qkv_bias", true), only_without("qk_layernorm"),
    {"layer_types", "window_size", windows}};
const std::vector<HfKey> llama_own_keys = {
    {"attention_bias", "add_bias_linear", {.read = read_biases, .write = write_biases}},
    {"", "add_attention_bias", {.export_only = true}}, no_qkv_bias, only_without("qk_layernorm"),
    {"", "window_size", no_windows}};
const std::vector<HfKey> mistral_keys = {
    key_is("mlp_bias", false), key_is("attention_bias", false), setting_is("add_bias_linear", false),
    setting_is("add_qkv_bias", false),
    only_without("qk_layernorm"), {"sliding_window", "window_size", windows}};
const std::vector<HfKey> gemma_keys = {
    attention_bias, key_is("use_bidirectional_attention", false), setting_is("add_bias_linear", false),
    no_qkv_bias,
    {"", "window_size", no_windows}, {"head_dim", "kv_channels", {.otherwise = 256}},
    {"hidden_act", "geglu", {.read = read_gemma_gelu, .write = write_gemma_gelu}},
    setting_is("swiglu", false),
    setting_is("scale_embeddings", true), setting_is("apply_layernorm_1p", true),
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};
const std::vector<HfKey> olmo2_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias, {"", "window_size", no_windows},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}}, setting_is("qk_layernorm", true),
    setting_is("qk_layernorm_all_heads", true),
    setting_is("norm_position", "output")};

const std::vector<HfKey> olmo3_keys = {
    attention_bias, setting_is("add_bias_linear", false), no_qkv_bias,
    {"layer_types", "window_size", {.read = read_window_types<4>, .write = write_window_types}},
    {"rope_parameters", "rotary_base", {.read = read_olmo3_rope, .write = write_olmo3_rope}},
    {"", "rotary_base_local", {.export_only = true}},
    {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-5}}, setting_is("qk_layernorm", true),
    setting_is("qk_layernorm_all_heads", true),
    setting_is("norm_position", "output")};

const json gpt2_defaults = {
    {"vocab_size", 50257}, {"n_positions", 1024}, {"n_embd", 768}, {"n_layer", 12}, {"n_head", 12}};
const json llama_defaults = {{"vocab_size", 32000}, {"hidden_size", 4096}, {"intermediate_size", 11008},
                             {"num_hidden_layers", 32}, {"num_attention_heads", 32}};
const json mistral_defaults = {
    {"vocab_size", 32000}, {"hidden_size", 4096}, {"intermediate_size", 14336}, {"num_hidden_layers", 32},
    {"num_attention_heads", 32}, {"num_key_value_heads", 8}, {"max_position_embeddings", 131072},
    {"sliding_window", 4096}};
const json qwen2_defaults = {
    {"vocab_size", 151936}, {"hidden_size", 4096}, {"intermediate_size", 22016}, {"num_hidden_layers", 32},
    {"num_attention_heads", 32}, {"num_key_value_heads", 32}, {"max_position_embeddings", 32768},
    {"sliding_window", 4096}};
const json gemma_defaults = {
    {"vocab_size", 256000}, {"hidden_size", 3072}, {"intermediate_size", 24576}, {"num_hidden_layers", 28},
    {"num_attention_heads", 16}, {"num_key_value_heads", 16}, {"max_position_embeddings", 8192}};
const json olmo3_defaults = {{"vocab_size", 50304}, {"hidden_size", 4096}, {"intermediate_size", 11008},
                             {"num_hidden_layers", 32}, {"num_attention_heads", 32}, {"sliding_window", 4096}};
const json olmo2_defaults = {{"vocab_size", 50304}, {"hidden_size", 4096}, {"intermediate_size", 11008},
                             {"num_hidden_layers", 32}, {"num_attention_heads", 32}};

const std::vector<std::string_view> gpt2_other_keys = {
    "reorder_and_upcast_attn", "predict_special_tokens", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout"};
// clang-format on

json with_head_size(json defaults) {
  defaults["head_dim"] = 128;
  return defaults;
}

// Norms are named by what they follow.
std::vector<HfTensorGroup> olmo2_tensors() {
  std::vector<HfTensorGroup> tensors = llama_tensors;
  for (HfTensorRow& row : tensors[1].rows) {
    if (row.name == "input_layernorm.weight") row.sources = {"post_attention_layernorm.weight"};
    if (row.name == "pre_mlp_layernorm.weight") row.sources = {"post_feedforward_layernorm.weight"};
    if (row.name == "self_attention.q_layernorm.weight") row.shape = {queries};
    if (row.name == "self_attention.k_layernorm.weight") row.rule = keys, row.shape = {queries};
  }
  return tensors;
}

}  // namespace

HfFamily gpt_hf_keys::llama_like(std::string_view type, std::string_view architecture,
                                 const std::vector<HfKey>& own, const json& defaults) {
  // transformers reads the windows' keys only where own has rows for them.
  std::vector<std::string_view> other_keys = {"use_sliding_window", "sliding_window", "max_window_layers"};
  other_keys.insert(other_keys.end(), rope_keys.begin(), rope_keys.end());
  return {.model_type = type,
          .architecture = std::string(architecture),
          .prefix = "model.",
          .keys = all_keys(llama_keys, own),
          .tensors = llama_tensors,
          .defaults = defaults,
          .other_keys = other_keys,
          .buffers = {".rotary_emb.inv_freq"}};
}

namespace {

HfFamily with_other_key(HfFamily family, std::string_view key) {
  family.other_keys.push_back(key);
  return family;
}

std::vector<HfFamily> gpt_models() {
  std::vector<HfFamily> families = {
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .prefix = "transformer.",
       .keys = all_keys(gpt2_keys, {}),
       .tensors = gpt2_tensors,
       .defaults = gpt2_defaults,
       .aliases = {{"hidden_size", "n_embd"},
                   {"max_position_embeddings", "n_positions"},
                   {"num_attention_heads", "n_head"},
                   {"num_hidden_layers", "n_layer"}},
       .other_keys = gpt2_other_keys,
       .buffers = {".attn.bias", ".attn.masked_bias"}},
      llama_like("qwen3", "Qwen3ForCausalLM", qwen3_keys, with_head_size(qwen2_defaults)),
      llama_like("qwen2", "Qwen2ForCausalLM", qwen2_keys, qwen2_defaults),
      with_other_key(llama_like("llama", "LlamaForCausalLM", llama_own_keys, llama_defaults), "mlp_bias"),
      llama_like("mistral", "MistralForCausalLM", mistral_keys, mistral_defaults),
      with_other_key(llama_like("gemma", "GemmaForCausalLM", gemma_keys, gemma_defaults),
                     "hidden_activation"),
      llama_like("olmo2", "Olmo2ForCausalLM", olmo2_keys, olmo2_defaults),
      llama_like("olmo3", "Olmo3ForCausalLM", olmo3_keys, olmo3_defaults)};
  for (HfFamily& family : families) {
    if (family.model_type.starts_with("olmo")) family.tensors = olmo2_tensors();
  }
  for (HfFamily& family : experts_families()) families.push_back(std::move(family));
  for (HfFamily& family : variant_families()) families.push_back(std::move(family));
  for (HfFamily& family : gemma_families()) families.push_back(std::move(family));
  families.push_back(gpt_oss_family());
  for (HfFamily& family : biased_router_families()) families.push_back(std::move(family));
  for (HfFamily& family : cohere_families()) families.push_back(std::move(family));
  for (HfFamily& family : llama4_families()) families.push_back(std::move(family));
  for (HfFamily& family : latent_families()) families.push_back(std::move(family));
  for (HfFamily& family : linear_families()) families.push_back(std::move(family));
  for (HfFamily& family : layernorm_families()) families.push_back(std::move(family));
  for (HfFamily& family : families) family.peft_task = "CAUSAL_LM";
  return families;
}

}  // namespace

FamilyFormats gpt_formats() {
  return {
      .hf = gpt_models(),
      .refused_hf = {{"gemma3n", "each layer has embeddings, and there are several residual streams"},
                     {"gemma3n_text", "each layer has embeddings, and there are several residual streams"},
                     {"gemma4", "each layer has embeddings, and layers share keys and values"},
                     {"gemma4_text", "each layer has embeddings, and layers share keys and values"},
                     {"deepseek_v32", "attention is sparse, with keys that an indexer chooses"},
                     {"deepseek_v4",
                      "attention is sparse, and residual streams are mixed by hyper-connections"}},
      .hf_classifier =
          HfTensorRow{"classification_head.weight", same, {"score.weight"}, {"num_classes", hidden}},
      .megatron = MegatronModel{
          .embeddings = megatron_rows::embeddings,
          .stacks = {{.ours = "decoder",
                      .legacy = "encoder",
                      .other = {"transformer"},
                      .layer = megatron_rows::joined({megatron_rows::layer(), megatron_rows::latent_attention,
                                                      megatron_rows::delta_net})}},
          .heads = megatron_rows::output,
          .mtp = megatron_rows::mtp,
          .has_core = true,
          .tokenizer = "GPT2BPETokenizer"}};
}

}  // namespace teratron
