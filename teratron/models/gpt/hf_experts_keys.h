// Keys of models with experts that several families share.
#pragma once

#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

/// A problem if the setting has another value.
void refuse_unless(HfConfig& config, std::string_view setting, const nlohmann::json& value);
/// 1 for each layer that has experts; a problem if the setting does not fit.
std::vector<int64_t> expert_layers(HfConfig& config, int64_t layers);
/// Which layers have experts, and which an MLP.
HfLayerKinds experts_kinds(HfConfig& config, int64_t layers);

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
