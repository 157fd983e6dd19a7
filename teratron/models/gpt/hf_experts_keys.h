// Keys and names of models with experts that several families share (hf_experts_families.cpp).
#pragma once

#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

inline constexpr std::string_view expert_ffn = "moe_ffn_hidden_size",
                                  shared_ffn = "moe_shared_expert_intermediate_size";

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
