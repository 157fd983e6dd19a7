// Names and options that the rows of several families' Hugging Face maps share.
#pragma once

#include "teratron/models/hf_map.h"

namespace teratron::hf_rows {

inline constexpr std::string_view hidden = "hidden_size", ffn = "ffn_hidden_size", vocab = "vocab_size";
inline constexpr std::string_view positions = "max_position_embeddings", heads = "num_attention_heads";
inline constexpr std::string_view untied = "untie_embeddings_and_output_weights";
inline constexpr std::string_view expert_ffn = "moe_ffn_hidden_size",
                                  shared_ffn = "moe_shared_expert_intermediate_size";
inline constexpr int64_t most_layers = 1 << 20;  // of a config, for which lists of layers are made
inline const HfTensorOptions biased = {.bias = {"add_bias_linear"}};

/// config.json may have the key with this value only.
inline HfKey key_is(std::string_view key, const nlohmann::json& value) {
  return {key, "", {.must_be = value}};
}
/// Models of this type have the setting with this value: import sets it, export demands it.
inline HfKey setting_is(std::string_view setting, const nlohmann::json& value) {
  return {"", setting, {.must_be = value}};
}
/// The setting is not of this type of models: export demands that it is off.
inline HfKey only_without(std::string_view setting) {
  return {"", setting, {.must_be = false, .export_only = true}};
}

}  // namespace teratron::hf_rows
