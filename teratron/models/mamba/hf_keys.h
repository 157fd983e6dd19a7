// Keys of config.json and rows of tensors that Hugging Face's models with Mamba-2 layers share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/models/gpt/hf_keys.h"
#include "teratron/models/mamba/hybrid_pattern.h"

namespace teratron::mamba_hf {

inline constexpr std::string_view pattern_setting = "hybrid_layer_pattern", least = "mamba_time_step_min",
                                  most = "mamba_time_step_max", inner = "mamba_num_heads*mamba_head_dim";

/// The letters of the layers; empty if no pattern is set.
std::string pattern_of(const HfConfig& config);
void set_pattern(HfConfig& config, const std::string& layers);
bool has_experts(const HfConfig& config);

// HfKeyOptions::read and write.
/// [0, infinity], where transformers 5 writes infinity as {"__float__": "Infinity"}.
void read_time_step_limit(std::string_view key, HfConfig& config);
void write_time_step_limit(std::string_view key, HfConfig& config);
/// The epsilon of all norms.
void write_norm_epsilon(std::string_view key, HfConfig& config);
/// d = expand h: the heads must say the same.
void read_expand(std::string_view key, HfConfig& config);
void write_expand(std::string_view key, HfConfig& config);

/// Keys of models whose mixers of Mamba-2 have sizes called mamba_*, and other keys that these models share.
std::vector<HfKey> prefixed_keys();
/// "auto": that of `mamba_d_ssm` or of `mamba_expand`.
void read_head_size(std::string_view key, HfConfig& config);
void write_head_size(std::string_view key, HfConfig& config);

/// Attention and its output projection, of layers of kind "full_attention", with the biases of the settings.
std::vector<HfTensorRow> attention_rows();
/// Embedding, final norm of this name, output layer.
std::vector<HfTensorGroup> ends_of_model(std::string_view final_norm);

/// A mixer of Mamba-2, of layers of kind "linear_attention"; names as in Megatron-Core.
std::vector<HfTensorRow> mixer_rows();

HfFamily bamba();
HfFamily falcon_h1();
HfFamily granitemoehybrid();

}  // namespace teratron::mamba_hf
