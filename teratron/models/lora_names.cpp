#include "teratron/models/lora_names.h"

#include <utility>

namespace teratron {

namespace {

// Ends of modules' names; the first that fits counts.
constexpr std::pair<std::string_view, std::string_view> module_ends[] = {
    {"attention.output.dense", "linear_proj"},
    {"attn.c_proj", "linear_proj"},
    {"self_attention.dense", "linear_proj"},
    {"attention.dense", "linear_proj"},
    {"mlp.c_proj", "linear_fc2"},
    {"intermediate.dense", "linear_fc1"},
    {"output.dense", "linear_fc2"},
    // gated delta nets, whose projections are one layer here
    {"in_proj_qkvz", "in_proj"},
    {"in_proj_ba", "in_proj"},
    {"in_proj_qkv", "in_proj"},
    {"in_proj_z", "in_proj"},
    {"in_proj_b", "in_proj"},
    {"in_proj_a", "in_proj"},
    {"linear_attn.q_proj", "in_proj"},
    {"linear_attn.k_proj", "in_proj"},
    {"linear_attn.v_proj", "in_proj"},
    {"linear_attn.g_proj", "in_proj"},
    {"linear_attn.b_proj", "in_proj"},
    {"linear_attn.a_proj", "in_proj"},
    {"linear_attn.o_proj", "out_proj"},
    {"mamba.in_proj", "in_proj"},
    {"mixer.in_proj", "in_proj"},
    {"mamba.out_proj", "out_proj"},
    {"mixer.out_proj", "out_proj"},
    {"linear_attn.out_proj", "out_proj"},
    {"shared_mlp.input_linear", "linear_fc1"},
    {"shared_mlp.output_linear", "linear_fc2"},
    // multi-head latent attention
    {"q_a_proj", "linear_q_down_proj"},
    {"q_b_proj", "linear_q_up_proj"},
    {"kv_a_proj_with_mqa", "linear_kv_down_proj"},
    {"kv_b_proj", "linear_kv_up_proj"},
    {"linear_q_proj", "linear_q"},
    {"q_proj", "linear_q"},
    {"k_proj", "linear_k"},
    {"v_proj", "linear_v"},
    {"o_proj", "linear_proj"},
    {"query", "linear_q"},
    {"key", "linear_k"},
    {"value", "linear_v"},
    {"gate_proj", "linear_fc1_gate"},
    {"up_proj", "linear_fc1_up"},
    {"down_proj", "linear_fc2"},
    {"c_attn", "linear_qkv"},
    {"query_key_value", "linear_qkv"},
    {"c_fc", "linear_fc1"},
    {"dense_h_to_4h", "linear_fc1"},
    {"dense_4h_to_h", "linear_fc2"},
    {"w1", "linear_fc1_gate"},
    {"w3", "linear_fc1_up"},
    {"w2", "linear_fc2"},
    {"wi_0", "linear_fc1_gate"},
    {"wi_1", "linear_fc1_up"},
    {"wi", "linear_fc1"},
    {"wo", "linear_fc2"},
    {"q", "linear_q"},
    {"k", "linear_k"},
    {"v", "linear_v"},
    {"o", "linear_proj"},
};
constexpr std::string_view own_targets[] = {"linear_q_down_proj",
                                            "linear_q_up_proj",
                                            "linear_kv_down_proj",
                                            "linear_kv_up_proj",
                                            "linear_qkv",
                                            "linear_q",
                                            "linear_k",
                                            "linear_v",
                                            "linear_kv",
                                            "linear_proj",
                                            "linear_fc1",
                                            "linear_fc1_gate",
                                            "linear_fc1_up",
                                            "linear_fc2",
                                            "in_proj",
                                            "out_proj"};

}  // namespace

bool ends_as_module(std::string_view name, std::string_view end) {
  return name.ends_with(end) && (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

std::string lora_target(std::string_view module) {
  for (const std::string_view own : own_targets) {
    if (module == own) return std::string(own);
  }
  for (const auto& [end, target] : module_ends) {
    if (ends_as_module(module, end)) return std::string(target);
  }
  return "";
}

}  // namespace teratron
