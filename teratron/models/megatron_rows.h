// Rows that the tables of several families share (megatron_model.h).
#pragma once

#include <initializer_list>

#include "teratron/models/megatron_model.h"

namespace teratron::megatron_rows {

inline const std::vector<MegatronRow> embeddings = {
    {"embedding.word_embeddings.", "language_model/embedding/word_embeddings/", {"word_embeddings."}},
    {"embedding.position_embeddings.",
     "language_model/embedding/position_embeddings/",
     {"position_embeddings."}},
    {"embedding.tokentype_embeddings.",
     "language_model/embedding/tokentype_embeddings/",
     {"tokentype_embeddings."}}};

inline const std::vector<MegatronRow> attention = {
    {.ours = "input_layernorm.",
     .legacy = "input_norm.",
     .other = {"self_attention.layernorm_qkv.layer_norm_"},
     .fused = {"self_attention.linear_qkv.layer_norm_", "self_attention.in_proj.layer_norm_"}},
    {.ours = "self_attention.linear_qkv.",
     .legacy = "self_attention.query_key_value.",
     .other = {"attention.query_key_value.", "self_attention.layernorm_qkv."},
     .linear = true},
    {.ours = "self_attention.linear_proj.",
     .legacy = "self_attention.dense.",
     .other = {"attention.dense.", "self_attention.proj."},
     .linear = true,
     .before_previous = true},
    {"self_attention.core_attention.softmax_offset"},
    {"self_attention.linear_proj.post_layernorm."},
    {"self_attention.q_layernorm.", "", {"self_attention.q_norm."}},
    {"self_attention.k_layernorm.", "", {"self_attention.k_norm."}}};

/// Multi-head latent attention in place of self-attention; its norms and output are rows of `attention`.
inline const std::vector<MegatronRow> latent_attention = {
    {.ours = "self_attention.linear_q_proj.", .linear = true},
    {.ours = "self_attention.linear_q_down_proj.", .linear = true},
    {.ours = "self_attention.linear_q_up_proj.", .linear = true},
    {.ours = "self_attention.linear_kv_down_proj.", .linear = true},
    {.ours = "self_attention.linear_kv_up_proj.", .linear = true},
    {.ours = "self_attention.kv_layernorm.", .fused = {"self_attention.linear_kv_up_proj.layer_norm_"}}};

inline const std::vector<MegatronRow> mlp = {{.ours = "mlp.linear_fc1.",
                                              .legacy = "mlp.dense_h_to_4h.",
                                              .other = {"layernorm_mlp.fc1_"},
                                              .linear = true},
                                             {.ours = "mlp.linear_fc2.",
                                              .legacy = "mlp.dense_4h_to_h.",
                                              .other = {"layernorm_mlp.fc2_"},
                                              .linear = true},
                                             {"mlp.linear_fc2.post_layernorm."},
                                             {"mlp.router."},
                                             {"mlp.router.expert_bias"},
                                             {.ours = "mlp.experts.#.linear_fc1.", .linear = true},
                                             {.ours = "mlp.experts.#.linear_fc2.", .linear = true},
                                             {"mlp.fc1_latent_proj."},
                                             {"mlp.fc2_latent_proj."},
                                             {"mlp.shared_experts.gate_weight"},
                                             {.ours = "mlp.shared_experts.linear_fc1.", .linear = true},
                                             {.ours = "mlp.shared_experts.linear_fc2.", .linear = true}};

/// The norm before the MLP, by its name in legacy models.
inline MegatronRow mlp_norm(std::string_view legacy, std::string_view v2) {
  return {.ours = "pre_mlp_layernorm.",
          .legacy = legacy,
          .other = {v2, "layernorm_mlp.layer_norm_"},
          .fused = {"mlp.linear_fc1.layer_norm_"}};
}

/// Multi-token prediction, beside the layer.
inline const std::vector<MegatronRow> mtp = {
    {"enorm."}, {"hnorm."}, {.ours = "eh_proj.", .linear = true}, {"final_layernorm."}};

inline const std::vector<MegatronRow> output = {
    {.ours = "output_layer.weight", .legacy = "language_model/output_layer/weight", .linear = true},
    {"output_layer.bias", "lm_head/bias", {"lm_head.output_layer.bias"}}};

inline std::vector<MegatronRow> joined(std::initializer_list<std::vector<MegatronRow>> parts) {
  std::vector<MegatronRow> rows;
  for (const std::vector<MegatronRow>& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

/// A gated delta net in place of self-attention; its norm is a row of `attention`.
inline const std::vector<MegatronRow> delta_net = {{"self_attention.dt_bias"},
                                                   {"self_attention.A_log"},
                                                   {.ours = "self_attention.in_proj.", .linear = true},
                                                   {"self_attention.conv1d."},
                                                   {"self_attention.out_norm."},
                                                   {.ours = "self_attention.out_proj.", .linear = true}};

/// A mixer of Mamba-2 and its norm.
inline const std::vector<MegatronRow> mamba = {{"mixer.dt_bias"},
                                               {"mixer.A_log"},
                                               {"mixer.D"},
                                               {.ours = "norm.", .fused = {"mixer.in_proj.layer_norm_"}},
                                               {.ours = "mixer.in_proj.", .linear = true},
                                               {.ours = "mixer.conv1d.", .other = {"mixer.conv1d_"}},
                                               {"mixer.norm."},
                                               {.ours = "mixer.out_proj.", .linear = true}};

/// Self-attention and an MLP or experts.
inline std::vector<MegatronRow> layer() {
  return joined({attention, {mlp_norm("post_attention_norm.", "post_attention_layernorm.")}, mlp});
}

}  // namespace teratron::megatron_rows
