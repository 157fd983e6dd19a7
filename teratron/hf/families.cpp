#include "teratron/hf/families.h"

#include <algorithm>

namespace teratron {

using nlohmann::json;

namespace {

int64_t default_ffn(const json& settings) {
  return 4 * settings.at("hidden_size").get<int64_t>();
}

int64_t default_groups(const json& settings) {
  return settings.at("num_attention_heads");
}

int64_t default_head_size(const json& settings) {
  const int64_t hidden = settings.at("hidden_size"), heads = settings.at("num_attention_heads");
  return std::max<int64_t>(hidden / heads, 1);
}

HfFamily gpt2() {
  const json activations = {{"gelu_new", true}, {"gelu_pytorch_tanh", true}, {"gelu", false}};
  return {
      .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .prefix = "transformer.",
      .layers = "h",
      .keys = {{"n_layer", "num_layers"},
               {"n_embd", "hidden_size"},
               {"n_head", "num_attention_heads"},
               {.key = "n_inner", .setting = "ffn_hidden_size", .derived = default_ffn},
               {"n_positions", "max_position_embeddings"},
               {.key = "n_ctx", .setting = "max_position_embeddings", .export_only = true},
               {"vocab_size", "vocab_size"},
               {"tie_word_embeddings", "untie_embeddings_and_output_weights", true, true},
               {.key = "activation_function",
                .setting = "bias_gelu_fusion",
                .otherwise = "gelu_new",
                .values = activations},
               {"layer_norm_epsilon", "norm_epsilon", 1e-5},
               {"resid_pdrop", "hidden_dropout", 0.1},
               {.key = "embd_pdrop", .setting = "hidden_dropout", .otherwise = 0.1, .export_only = true},
               {"attn_pdrop", "attention_dropout", 0.1},
               {"initializer_range", "init_method_std", 0.02},
               {"scale_attn_weights", {}, true},
               {"scale_attn_by_inverse_layer_idx", {}, false},
               {"add_cross_attention", {}, false}},
      .embeddings = {{"embedding.word_embeddings", {"wte"}, "vocab_size", "hidden_size"},
                     {"embedding.position_embeddings", {"wpe"}, "max_position_embeddings", "hidden_size"}},
      .layer = {{"input_layernorm", {"ln_1"}, "hidden_size", {}, true},
                {"self_attention.linear_qkv", {"attn.c_attn"}, "qkv", "hidden_size", true, true},
                {"self_attention.linear_proj", {"attn.c_proj"}, "hidden_size", "hidden_size", true, true},
                {"pre_mlp_layernorm", {"ln_2"}, "hidden_size", {}, true},
                {"mlp.linear_fc1", {"mlp.c_fc"}, "ffn_hidden_size", "hidden_size", true, true},
                {"mlp.linear_fc2", {"mlp.c_proj"}, "hidden_size", "ffn_hidden_size", true, true}},
      .final_norm = {"decoder.final_layernorm", {"ln_f"}, "hidden_size", {}, true},
      .fixed = {{"position_embedding_type", "learned_absolute"},
                {"normalization", "LayerNorm"},
                {"swiglu", false},
                {"group_query_attention", false},
                {"add_bias_linear", true},
                {"add_qkv_bias", false}},
      .end_token = 50256};
}

// Llama, and with `patch` to its fixed settings the families like it.
struct LlamaLike {
  std::string_view model_type;
  std::string_view architecture;
  json patch;
  HfWindows windows;
  std::vector<HfKey> bias_keys;
};

HfFamily llama_like(const LlamaLike& like) {
  constexpr std::string_view qk_norm = "qk_layernorm";
  HfFamily family = {
      .model_type = like.model_type,
      .architecture = like.architecture,
      .prefix = "model.",
      .layers = "layers",
      .keys = {{"num_hidden_layers", "num_layers"},
               {"hidden_size", "hidden_size"},
               {"intermediate_size", "ffn_hidden_size"},
               {"num_attention_heads", "num_attention_heads"},
               {.key = "num_key_value_heads", .setting = "num_query_groups", .derived = default_groups},
               {.key = "head_dim", .setting = "kv_channels", .derived = default_head_size},
               {"max_position_embeddings", "max_position_embeddings", 2048},
               {"vocab_size", "vocab_size"},
               {"tie_word_embeddings", "untie_embeddings_and_output_weights", false, true},
               {.key = "hidden_act", .setting = "swiglu", .otherwise = "silu", .values = {{"silu", true}}},
               {"rms_norm_eps", "norm_epsilon", 1e-6},
               {{}, "hidden_dropout", 0.0},
               {"attention_dropout", "attention_dropout", 0.0},
               {"initializer_range", "init_method_std", 0.02}},
      .embeddings = {{"embedding.word_embeddings", {"embed_tokens"}, "vocab_size", "hidden_size"}},
      .layer =
          {{"input_layernorm", {"input_layernorm"}, "hidden_size"},
           {"self_attention.linear_qkv",
            {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
            "qkv",
            "hidden_size",
            true},
           {"self_attention.linear_proj",
            {"self_attn.o_proj"},
            "hidden_size",
            "num_attention_heads*kv_channels",
            true},
           {"self_attention.q_layernorm", {"self_attn.q_norm"}, "kv_channels", {}, false, false, qk_norm},
           {"self_attention.k_layernorm", {"self_attn.k_norm"}, "kv_channels", {}, false, false, qk_norm},
           {"pre_mlp_layernorm", {"post_attention_layernorm"}, "hidden_size"},
           {"mlp.linear_fc1", {"mlp.gate_proj", "mlp.up_proj"}, "ffn_hidden_size", "hidden_size", true},
           {"mlp.linear_fc2", {"mlp.down_proj"}, "hidden_size", "ffn_hidden_size", true}},
      .final_norm = {"decoder.final_layernorm", {"norm"}, "hidden_size"},
      .fixed = {{"position_embedding_type", "rope"},
                {"normalization", "RMSNorm"},
                {"swiglu", true},
                {"add_qkv_bias", false}},
      .windows = like.windows};
  family.keys.insert(family.keys.end(), like.bias_keys.begin(), like.bias_keys.end());
  family.fixed.update(like.patch);
  return family;
}

}  // namespace

const std::vector<HfFamily>& hf_families() {
  const std::vector<HfKey> biases = {{"mlp_bias", "add_bias_linear", false},
                                     {"attention_bias", "add_bias_linear", false}};
  const std::vector<HfKey> no_biases = {{"mlp_bias", {}, false}, {"attention_bias", {}, false}};
  static const std::vector<HfFamily> families = {
      gpt2(),
      llama_like({"qwen3",
                  "Qwen3ForCausalLM",
                  {{"add_bias_linear", false}, {"qk_layernorm", true}},
                  HfWindows::per_layer,
                  no_biases}),
      llama_like({"qwen2",
                  "Qwen2ForCausalLM",
                  {{"add_bias_linear", false}, {"add_qkv_bias", true}},
                  HfWindows::per_layer,
                  {}}),
      llama_like({"llama", "LlamaForCausalLM", json::object(), HfWindows::none, biases}),
      llama_like(
          {"mistral", "MistralForCausalLM", {{"add_bias_linear", false}}, HfWindows::all_layers, no_biases})};
  return families;
}

}  // namespace teratron
