// Rows of all of GPT's model_types for the settings that a type has no rows for.
#include <algorithm>

#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

using namespace hf_rows;
using nlohmann::json;

static HfKey factor_is_one(std::string_view setting) {
  return {"", setting, {.must_be = 1.0, .export_only = true}};
}

template <const std::string_view& setting>
static void write_not_set(std::string_view, HfConfig& config) {
  const json& value = config.settings.at(setting);
  if (!value.is_null()) config.problem("{} is {}", setting, value.dump());
}

template <const std::string_view& setting>
static HfKey is_not_set() {
  return {"", setting, {.export_only = true, .write = write_not_set<setting>}};
}

static constexpr std::string_view experts = "num_experts", linear_layers = "experimental_attention_variant",
                                  linear_epsilon = "linear_norm_epsilon", mtp_layers = "mtp_num_layers",
                                  scale = "softmax_scale", no_rope_freq = "no_rope_freq",
                                  least_sum = "moe_router_least_sum", chunk = "attention_chunk_size",
                                  local_base = "rotary_base_local", clamp = "activation_func_clamp_value";

// For what the rows of a model_type leave out: export refuses other values than these.
// clang-format off
static const std::vector<HfKey>& common_keys() {
  static const std::vector<HfKey> keys = {
    {"initializer_range", "init_method_std", {.otherwise = 0.02}},
    {"", "seq_length", {.derived = positions}},
    is_not_set<experts>(),
    {"", "add_attention_bias", {.export_only = true, .write = write_no_attention_bias}},
    {"", "rotary_percent", {.must_be = 1.0, .export_only = true}},
    {"", "position_embedding_offset", {.must_be = 0, .export_only = true}},
    {"", "norm_position", {.must_be = "input", .export_only = true}},
    only_without("swiglu"), only_without("squared_relu"), only_without("geglu"),
    only_without("relu"), only_without("rotary_interleaved"), only_without("parallel_residual"),
    only_without("qk_layernorm"), only_without("qk_layernorm_all_heads"),
    only_without("multi_latent_attention"), only_without("moe_router_unnormalized"),
    only_without("moe_router_normalize_one"), only_without("moe_apply_probs_on_input"),
    only_without("parallel_residual_one_norm"), only_without("qk_layernorm_per_head"),
    only_without("qk_l2_norm"), only_without("rotary_reversed"),
    {"", "norm_weights", {.must_be = "all", .export_only = true}},
    {"", "attention_temperature_scale", {.must_be = 0.0, .export_only = true}},
    is_not_set<least_sum>(), is_not_set<chunk>(),
    only_without("attention_output_gate"), only_without("linear_allow_negative_eigenvalues"),
    is_not_set<linear_layers>(),
    is_not_set<mtp_layers>(),
    is_not_set<linear_epsilon>(),
    factor_is_one("embedding_multiplier"), factor_is_one("residual_multiplier"),
    factor_is_one("logits_multiplier"), factor_is_one("mamba_input_multiplier"),
    factor_is_one("mamba_output_multiplier"), factor_is_one("attention_input_multiplier"),
    factor_is_one("attention_output_multiplier"), factor_is_one("key_multiplier"),
    factor_is_one("mlp_gate_multiplier"), factor_is_one("mlp_output_multiplier"),
    {"", "mamba_multipliers", {.must_be = json::array(), .export_only = true}},
    {"", "mamba_gate", {.must_be = "before-norm", .export_only = true}},
    is_not_set<scale>(),
    {"", "attn_logit_softcapping", {.must_be = 0.0, .export_only = true}},
    {"", "final_logit_softcapping", {.must_be = 0.0, .export_only = true}},
    {"", "softmax_type", {.must_be = "vanilla", .export_only = true}},
    is_not_set<no_rope_freq>(),
    is_not_set<local_base>(),
    is_not_set<clamp>(),
    {"", "longrope_short_factors", {.must_be = json::array(), .export_only = true}},
    only_without("quick_geglu"), {"", "glu_linear_offset", {.must_be = 0.0, .export_only = true}},
    only_without("embedding_layernorm"), only_without("scale_embeddings"),
    only_without("apply_layernorm_1p"), only_without("apply_residual_connection_post_layernorm")};
  return keys;
}
// clang-format on

std::vector<HfKey> all_keys(std::vector<HfKey> keys, const std::vector<HfKey>& own) {
  const auto has_row = [](const std::vector<HfKey>& rows, const HfKey& row) {
    return !row.setting.empty() && std::ranges::find(rows, row.setting, &HfKey::setting) != rows.end();
  };
  std::erase_if(keys, [&](const HfKey& row) { return has_row(own, row); });
  keys.insert(keys.end(), own.begin(), own.end());
  const std::vector<HfKey> specific = keys;
  for (const HfKey& row : common_keys()) {
    if (!has_row(specific, row)) keys.push_back(row);
  }
  return keys;
}

std::vector<HfKey> joined(std::vector<HfKey> keys, std::initializer_list<const std::vector<HfKey>*> more) {
  for (const std::vector<HfKey>* list : more) keys.insert(keys.end(), list->begin(), list->end());
  return keys;
}

void replace_rows(HfFamily& family, std::string_view part, const std::vector<HfTensorRow>& by) {
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  const auto is_of_part = [part](const HfTensorRow& row) { return row.name.starts_with(part); };
  const auto place = std::ranges::find_if(rows, is_of_part) - rows.begin();
  std::erase_if(rows, is_of_part);
  rows.insert(rows.begin() + place, by.begin(), by.end());
}

}  // namespace teratron::gpt_hf_keys
