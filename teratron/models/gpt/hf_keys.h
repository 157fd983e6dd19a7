// Keys of config.json that rows cannot express, and those that GPT's model_types of Hugging Face share
// (hf_families.cpp, hf_layernorm_families.cpp).
#pragma once

#include <string_view>
#include <vector>

#include "teratron/models/hf_rows.h"

namespace teratron::gpt_hf_keys {

// HfKeyOptions::read and write.
void read_query_groups(std::string_view key, HfConfig& config);
void write_query_groups(std::string_view key, HfConfig& config);
void write_qkv_bias(std::string_view key, HfConfig& config);
void write_no_attention_bias(std::string_view key, HfConfig& config);
/// Llama's biases: of attention and MLP, or of attention alone.
void read_biases(std::string_view key, HfConfig& config);
void write_biases(std::string_view key, HfConfig& config);
void write_gelu(std::string_view key, HfConfig& config);
void write_tanh_gelu(std::string_view key, HfConfig& config);
void read_gemma_gelu(std::string_view key, HfConfig& config);
void write_gemma_gelu(std::string_view key, HfConfig& config);
void write_bloom_ffn(std::string_view key, HfConfig& config);
void write_special_tokens(std::string_view key, HfConfig& config);
void read_rope(std::string_view key, HfConfig& config);
void write_rope(std::string_view key, HfConfig& config);
/// With the share of channels that is rotated; a quarter where it is not given.
void read_rope_share(std::string_view key, HfConfig& config);
void write_rope_share(std::string_view key, HfConfig& config);
/// Half of them where it is not given.
void read_half_rope(std::string_view key, HfConfig& config);
/// GPT-NeoX's names of both, too.
void read_partial_rope(std::string_view key, HfConfig& config);
void write_partial_rope(std::string_view key, HfConfig& config);
void read_windows(std::string_view key, HfConfig& config);
/// Qwen2-MoE's rule for layers where layer_types is missing.
void read_alternating_windows(std::string_view key, HfConfig& config);
void write_windows(std::string_view key, HfConfig& config);

inline constexpr std::string_view queries = "num_attention_heads*kv_channels";
/// What read_rope reads.
inline const std::vector<std::string_view> rope_keys = {"rope_theta", "rope_scaling", "rope_parameters",
                                                        "partial_rotary_factor",
                                                        "original_max_position_embeddings"};
inline const HfKeyOptions groups = {.read = read_query_groups, .write = write_query_groups};
inline const HfKeyOptions windows = {.read = read_windows, .write = write_windows};
inline const HfKeyOptions no_windows = {.export_only = true, .write = write_windows};
inline const HfKeyOptions head_size = {.derived = "hidden_size/num_attention_heads"};
/// Without biases of the MLP.
inline const HfKey attention_bias = {"attention_bias", "add_attention_bias", {.otherwise = false}};
inline const HfKey no_qkv_bias = {"", "add_qkv_bias", {.otherwise = false, .write = write_qkv_bias}};
inline const HfKeyOptions embedded = {.rows_of = "embedding.word_embeddings.weight"};
inline const HfTensorOptions copied = {
    .copies = {"lm_head.weight"}};  // files may hold a tied output layer too
/// Names of activation functions -> whether GELU is the tanh form.
inline const nlohmann::json gelu_names = {
    {"gelu_new", true}, {"gelu_fast", true}, {"gelu_pytorch_tanh", true}, {"gelu", false}};

/// `keys` without the settings that `own` has rows for, `own`, and the rows of all models for the settings
/// that are left.
std::vector<HfKey> all_keys(std::vector<HfKey> keys, const std::vector<HfKey>& own);

/// The lists, one after another.
std::vector<HfKey> joined(std::vector<HfKey> keys, std::initializer_list<const std::vector<HfKey>*> more);
/// `rows` in the place of those of the family's layers whose names begin with `part`.
void replace_rows(HfFamily& family, std::string_view part, const std::vector<HfTensorRow>& rows);

/// Llama with these rows for the settings that they have, and these defaults of its configuration class.
HfFamily llama_like(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
                    const nlohmann::json& defaults);
/// Experts of DeepSeek's models in place of some MLPs; with a bias of their choice from V3 on.
HfFamily with_deepseek_experts(HfFamily family, bool has_bias);
/// Experts of MiniMax-M2 and of ERNIE 4.5.
HfFamily with_minimax_experts(HfFamily family);
HfFamily with_ernie_experts(HfFamily family);
/// Query-key norms over all heads together.
void with_norms_of_all_heads(HfFamily& family);
/// DeepSeek-V2 and V3, Kimi-K2 and GLM-4 MoE lite: multi-head latent attention.
std::vector<HfFamily> latent_families();
/// What Qwen3-Next has of experts, with those that all tokens share.
std::vector<HfKey> qwen_next_experts_keys();
HfFamily with_qwen_experts(HfFamily family);
/// Mixtral, Qwen2-MoE, Qwen3-MoE.
std::vector<HfFamily> experts_families();
/// Qwen3-Next, Qwen3.5, OLMo hybrid.
std::vector<HfFamily> linear_families();
/// Phi-3, Granite, SmolLM3, Seed-OSS, GLM-4, StarCoder2.
std::vector<HfFamily> variant_families();
/// LongRoPE, of merged keys (read_rope).
void read_longrope(HfConfig& config);
/// Gemma 2 and 3.
std::vector<HfFamily> gemma_families();
HfFamily gpt_oss_family();
/// GLM-4.5, MiniMax-M2, ERNIE 4.5: biases choose experts.
std::vector<HfFamily> biased_router_families();
/// Command R and R7B, nanochat: norms with fewer parameters, or none.
std::vector<HfFamily> cohere_families();
std::vector<HfFamily> llama4_families();
/// BLOOM, GPT-NeoX and OPT: LayerNorm and biases everywhere.
std::vector<HfFamily> layernorm_families();

}  // namespace teratron::gpt_hf_keys
