// GPT's model_types of Hugging Face with LayerNorm and biases everywhere: BLOOM, GPT-NeoX (Pythia), OPT.
#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

using enum HfRule;
using namespace hf_rows;

namespace {

// clang-format off

constexpr std::string_view fused_rows = "3*num_attention_heads*kv_channels";  // Q, K and V of each head

// Keys of all three.
const std::vector<HfKey> layernorm_keys = {
    {"", "num_query_groups", groups}, {"", "kv_channels", head_size}, {"", "window_size", no_windows},
    setting_is("normalization", "LayerNorm"), setting_is("swiglu", false),
    setting_is("add_bias_linear", true),
    {"", "add_qkv_bias", {.otherwise = false, .export_only = true, .write = write_qkv_bias}}};

// The length is that of training: ALiBi has none.
const std::vector<HfKey> bloom_keys = {
    {"n_layer", "num_layers"}, {"hidden_size", hidden}, {"n_head", heads}, {"vocab_size", vocab, embedded},
    {"seq_length", positions, {.otherwise = 2048}},
    {"", ffn, {.derived = "4*hidden_size", .write = write_bloom_ffn}},
    setting_is("position_embedding_type", "alibi"),
    {"layer_norm_epsilon", "norm_epsilon", {.otherwise = 1e-5}},
    {"", "bias_gelu_fusion", {.must_be = true, .write = write_tanh_gelu}},
    setting_is("embedding_layernorm", true),
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"hidden_dropout", "hidden_dropout", {.otherwise = 0.0}},
    {"apply_residual_connection_post_layernorm", "apply_residual_connection_post_layernorm",
     {.otherwise = false}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}, key_is("slow_but_exact", false)};

const std::vector<HfTensorGroup> bloom_tensors = {
    {"embedding.", "transformer.", {
        {"word_embeddings.weight", same, {"word_embeddings.weight"}, {vocab, hidden}, copied},
        {"word_embeddings_layernorm.weight", same, {"word_embeddings_layernorm.weight"}, {hidden}, biased}}},
    {"decoder.layers.*.", "transformer.h.*.", {
        {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}, biased},
        {"self_attention.linear_qkv.weight", same, {"self_attention.query_key_value.weight"},
         {fused_rows, hidden}, biased},
        {"self_attention.linear_proj.weight", same, {"self_attention.dense.weight"}, {hidden, queries},
         biased},
        {"pre_mlp_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}, biased},
        {"mlp.linear_fc1.weight", same, {"mlp.dense_h_to_4h.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", same, {"mlp.dense_4h_to_h.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "transformer.", {{"final_layernorm.weight", same, {"ln_f.weight"}, {hidden}, biased}}},
    {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {{untied}}}}}};

const std::vector<HfKey> neox_keys = {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"intermediate_size", ffn},
    {"num_attention_heads", heads},
    {"vocab_size", vocab, embedded}, {"max_position_embeddings", positions, {.otherwise = 2048}},
    {"rope_parameters", "rotary_base", {.read = read_partial_rope, .write = write_partial_rope}},
    {"", "rotary_percent", {.export_only = true}}, {"layer_norm_eps", "norm_epsilon", {.otherwise = 1e-5}},
    {"hidden_act", "bias_gelu_fusion", {.otherwise = "gelu", .values = gelu_names, .write = write_gelu}},
    {"use_parallel_residual", "parallel_residual", {.otherwise = true}}, key_is("attention_bias", true),
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"hidden_dropout", "hidden_dropout", {.otherwise = 0.0}},
    {"tie_word_embeddings", untied, {.otherwise = false, .negate = true}}};

const std::vector<HfTensorGroup> neox_tensors = {
    {"embedding.", "gpt_neox.", {
        {"word_embeddings.weight", same, {"embed_in.weight"}, {vocab, hidden},
         {.copies = {"embed_out.weight", "lm_head.weight"}}}}},
    {"decoder.layers.*.", "gpt_neox.layers.*.", {
        {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}, biased},
        {"self_attention.linear_qkv.weight", same, {"attention.query_key_value.weight"}, {fused_rows, hidden},
         biased},
        {"self_attention.linear_proj.weight", same, {"attention.dense.weight"}, {hidden, queries}, biased},
        {"pre_mlp_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}, biased},
        {"mlp.linear_fc1.weight", same, {"mlp.dense_h_to_4h.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", same, {"mlp.dense_4h_to_h.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "gpt_neox.",
     {{"final_layernorm.weight", same, {"final_layer_norm.weight"}, {hidden}, biased}}},
    {"", "", {{"output_layer.weight", same, {"embed_out.weight"}, {vocab, hidden}, {{untied}}}}}};

const std::vector<HfKey> opt_keys = {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"ffn_dim", ffn},
    {"num_attention_heads", heads},
    {"vocab_size", vocab, embedded}, {"max_position_embeddings", positions, {.otherwise = 2048}},
    {"word_embed_proj_dim", hidden, {.derived = hidden}},
    setting_is("position_embedding_type", "learned_absolute"),
    setting_is("position_embedding_offset", 2), setting_is("norm_epsilon", 1e-5),
    {"activation_function", "relu", {.otherwise = "relu", .values = {{"relu", true}}}},
    {"init_std", "init_method_std", {.otherwise = 0.02}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"dropout", "hidden_dropout", {.otherwise = 0.1}},
    key_is("layerdrop", 0.0), key_is("do_layer_norm_before", true), key_is("enable_bias", true),
    key_is("layer_norm_elementwise_affine", true), key_is("_remove_final_layer_norm", false),
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}}};

const std::vector<HfTensorGroup> opt_tensors = {
    {"embedding.", "model.decoder.", {
        {"word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, copied},
        {"position_embeddings.weight", same, {"embed_positions.weight"},
         {"max_position_embeddings+position_embedding_offset", hidden}}}},
    {"decoder.layers.*.", "model.decoder.layers.*.", {
        {"input_layernorm.weight", same, {"self_attn_layer_norm.weight"}, {hidden}, biased},
        {"self_attention.linear_qkv.weight", qkv_grouped,
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {queries, hidden},
         biased},
        {"self_attention.linear_proj.weight", same, {"self_attn.out_proj.weight"}, {hidden, queries}, biased},
        {"pre_mlp_layernorm.weight", same, {"final_layer_norm.weight"}, {hidden}, biased},
        {"mlp.linear_fc1.weight", same, {"fc1.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", same, {"fc2.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "model.decoder.",
     {{"final_layernorm.weight", same, {"final_layer_norm.weight"}, {hidden}, biased}}},
    {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {{untied}}}}}};
// clang-format on

std::vector<std::string_view> neox_other_keys() {
  std::vector<std::string_view> keys = {"rotary_pct", "rotary_emb_base"};
  keys.insert(keys.end(), rope_keys.begin(), rope_keys.end());
  return keys;
}

}  // namespace

std::vector<HfFamily> layernorm_families() {
  return {{.model_type = "bloom",
           .architecture = "BloomForCausalLM",
           .prefix = "transformer.",
           .keys = all_keys(bloom_keys, layernorm_keys),
           .tensors = bloom_tensors,
           .defaults = {{"vocab_size", 250880}, {"hidden_size", 64}, {"n_layer", 2}, {"n_head", 8}},
           .aliases = {{"num_hidden_layers", "n_layer"},
                       {"num_attention_heads", "n_head"},
                       {"n_embed", "hidden_size"}},
           .other_keys = {"attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
                          "offset_alibi", "skip_bias_add", "skip_bias_add_qkv"}},
          {.model_type = "gpt_neox",
           .architecture = "GPTNeoXForCausalLM",
           .prefix = "gpt_neox.",
           .keys = all_keys(neox_keys, layernorm_keys),
           .tensors = neox_tensors,
           .defaults = {{"vocab_size", 50432},
                        {"hidden_size", 6144},
                        {"intermediate_size", 24576},
                        {"num_hidden_layers", 44},
                        {"num_attention_heads", 64}},
           .other_keys = neox_other_keys(),
           .buffers = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
           .old_ends = {{"embed_out.weight", "lm_head.weight"}}},
          {.model_type = "opt",
           .architecture = "OPTForCausalLM",
           .prefix = "model.",
           .keys = all_keys(opt_keys, layernorm_keys),
           .tensors = opt_tensors,
           .defaults = {{"vocab_size", 50272},
                        {"hidden_size", 768},
                        {"ffn_dim", 3072},
                        {"num_hidden_layers", 12},
                        {"num_attention_heads", 12}}}};
}

}  // namespace teratron::gpt_hf_keys
