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
inline constexpr int64_t most_layers = 1 << 20;

/// The letters of the layers; empty if no pattern is set.
std::string pattern_of(const HfConfig& config);
void set_pattern(HfConfig& config, const std::string& layers);

// HfKeyOptions::read and write.
/// [0, infinity], where transformers 5 writes infinity as {"__float__": "Infinity"}.
void read_time_step_limit(std::string_view key, HfConfig& config);
void write_time_step_limit(std::string_view key, HfConfig& config);
/// The epsilon of all norms.
void write_norm_epsilon(std::string_view key, HfConfig& config);
/// d = expand h: the heads must say the same.
void read_expand(std::string_view key, HfConfig& config);
void write_expand(std::string_view key, HfConfig& config);

/// A mixer of Mamba-2, of layers of kind "linear_attention"; names as in Megatron-Core.
std::vector<HfTensorRow> mixer_rows();

HfFamily bamba();

}  // namespace teratron::mamba_hf
