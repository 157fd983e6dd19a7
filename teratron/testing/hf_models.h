// Small models of Hugging Face for tests.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/hf/weight_map.h"

namespace teratron {

inline nlohmann::json hf_llama() {
  return {{"model_type", "llama"},    {"hidden_size", 12},
          {"intermediate_size", 20},  {"num_hidden_layers", 2},
          {"num_attention_heads", 6}, {"num_key_value_heads", 2},
          {"vocab_size", 13},         {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},     {"rope_theta", 500000.0},
          {"hidden_act", "silu"},     {"tie_word_embeddings", false}};
}

inline nlohmann::json hf_gpt2() {
  return {{"model_type", "gpt2"},
          {"n_embd", 8},
          {"n_layer", 2},
          {"n_head", 2},
          {"vocab_size", 11},
          {"n_positions", 16},
          {"activation_function", "gelu_new"}};
}

inline nlohmann::json changed(nlohmann::json value, const nlohmann::json& patch) {
  value.merge_patch(patch);
  return value;
}

inline HfModel parse_hf(const nlohmann::json& value) {
  return parse_hf_config(value.dump(), "config.json");
}

inline std::vector<nlohmann::json> hf_models() {
  return {
      hf_llama(),
      hf_gpt2(),
      changed(hf_llama(), {{"model_type", "mistral"}, {"head_dim", 4}}),
      changed(hf_llama(), {{"model_type", "qwen2"}, {"tie_word_embeddings", true}}),
      changed(hf_llama(), {{"model_type", "qwen3"}, {"head_dim", 8}}),
      changed(hf_llama(), {{"attention_bias", true}, {"mlp_bias", true}}),
      changed(hf_llama(), {{"num_key_value_heads", 6}}),
      changed(hf_llama(), {{"model_type", "mistral"}, {"sliding_window", 32}}),
      changed(hf_llama(), {{"model_type", "qwen2"},
                           {"use_sliding_window", true},
                           {"sliding_window", 8},
                           {"max_window_layers", 1}}),
      changed(hf_llama(), {{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}}),
      changed(hf_llama(), {{"model_type", "qwen2_moe"},
                           {"num_experts", 3},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 6},
                           {"shared_expert_intermediate_size", 10},
                           {"mlp_only_layers", {0}}}),
      changed(hf_llama(), {{"model_type", "qwen3_moe"},
                           {"num_experts", 4},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 6},
                           {"decoder_sparse_step", 2},
                           {"norm_topk_prob", true}}),
      changed(hf_gpt2(), {{"activation_function", "gelu"}})};
}

}  // namespace teratron
