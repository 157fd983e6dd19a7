// Keys of models with experts that several families share.
#pragma once

#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

/// A problem if the setting has another value.
void refuse_unless(HfConfig& config, std::string_view setting, const nlohmann::json& value);
/// 1 for each layer that has experts; a problem if the setting does not fit.
std::vector<int64_t> expert_layers(HfConfig& config, int64_t layers);
/// Which layers have "experts", also "shared experts", and which an "mlp".
HfLayerKinds experts_kinds(HfConfig& config, int64_t layers);

/// moe_layer_freq; a problem if no layer has experts.
void set_expert_layers(const std::vector<int64_t>& pattern, HfConfig& config);
/// Scores are sigmoids, with a bias in the choice; those of the chosen experts are divided by their sum, or
/// not.
void read_sigmoid_router(bool normalizes, HfConfig& config);
/// Whether they are.
bool write_sigmoid_router(HfConfig& config);

// Experts of DeepSeek's models (hf_deepseek_experts.cpp).
std::vector<HfKey> deepseek_experts_keys();
std::vector<HfKey> v3_router_keys();
/// The number of experts as wide as the others that all tokens share.
HfKey shared_experts_key(std::string_view key);
std::vector<HfKey> v2_router_keys();
/// The first layers have an MLP; or a list says which.
std::vector<HfKey> first_dense_keys();
std::vector<HfKey> mlp_types_keys();
/// Layers that predict further tokens, after all others.
void add_mtp(HfFamily& family);
void add_deepseek_other_keys(HfFamily& family);

// HfKeyOptions::read and write.
/// One width for all.
void read_expert_ffn(std::string_view key, HfConfig& config);
void write_expert_ffn(std::string_view key, HfConfig& config);
/// A softmax router without scaling, groups and biases of experts.
void write_plain_router(std::string_view key, HfConfig& config);
/// Every layer has experts.
void write_all_sparse(std::string_view key, HfConfig& config);
void write_no_shared(std::string_view key, HfConfig& config);
/// norm_topk_prob.
void read_normalized(std::string_view key, HfConfig& config);
void write_normalized(std::string_view key, HfConfig& config);

}  // namespace teratron::gpt_hf_keys
