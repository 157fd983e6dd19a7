// Rows of all of GPT's model_types for the settings that a type has no rows for.
#include <algorithm>

#include "teratron/models/gpt/hf_keys.h"

namespace teratron::gpt_hf_keys {

using namespace hf_rows;
using nlohmann::json;

void write_no_experts(std::string_view, HfConfig& config) {
  if (!config.settings.at("num_experts").is_null())
    config.problem("num_experts is {}", config.settings.at("num_experts").dump());
}

static void write_no_linear_attention(std::string_view, HfConfig& config) {
  const json& variant = config.settings.at("experimental_attention_variant");
  if (!variant.is_null()) config.problem("experimental_attention_variant is {}", variant.dump());
}

static void write_no_linear_epsilon(std::string_view, HfConfig& config) {
  const json& epsilon = config.settings.at("linear_norm_epsilon");
  if (!epsilon.is_null()) config.problem("linear_norm_epsilon is {}", epsilon.dump());
}

static void write_no_mtp(std::string_view, HfConfig& config) {
  const json& layers = config.settings.at("mtp_num_layers");
  if (!layers.is_null()) config.problem("mtp_num_layers is {}", layers.dump());
}

static HfKey factor_is_one(std::string_view setting) {
  return {"", setting, {.must_be = 1.0, .export_only = true}};
}

template <const std::string_view& setting>
static void write_not_set(std::string_view, HfConfig& config) {
  const json& value = config.settings.at(setting);
  if (!value.is_null()) config.problem("{} is {}", setting, value.dump());
}

static constexpr std::string_view no_rope_freq = "no_rope_freq", local_base = "rotary_base_local",
                                  clamp = "activation_func_clamp_value";

static void write_usual_scale(std::string_view, HfConfig& config) {
  const json& scale = config.settings.at("softmax_scale");
  if (!scale.is_null()) config.problem("softmax_scale is {}", scale.dump());
}

// For what the rows of a model_type leave out: export refuses other values than these.
// clang-format off
static const std::vector<HfKey>& common_keys() {
  static const std::vector<HfKey> keys = {
    {"initializer_range", "init_method_std", {.otherwise = 0.02}},
    {"", "seq_length", {.derived = positions}},
    {"", "num_experts", {.export_only = true, .write = write_no_experts}},
    {"", "add_attention_bias", {.export_only = true, .write = write_no_attention_bias}},
    {"", "rotary_percent", {.must_be = 1.0, .export_only = true}},
    {"", "position_embedding_offset", {.must_be = 0, .export_only = true}},
    {"", "norm_position", {.must_be = "input", .export_only = true}},
    only_without("swiglu"), only_without("squared_relu"), only_without("geglu"),
    only_without("relu"), only_without("rotary_interleaved"), only_without("parallel_residual"),
    only_without("qk_layernorm"), only_without("qk_layernorm_all_heads"),
    only_without("multi_latent_attention"), only_without("moe_router_unnormalized"),
    only_without("attention_output_gate"), only_without("linear_allow_negative_eigenvalues"),
    {"", "experimental_attention_variant", {.export_only = true, .write = write_no_linear_attention}},
    {"", "mtp_num_layers", {.export_only = true, .write = write_no_mtp}},
    {"", "linear_norm_epsilon", {.export_only = true, .write = write_no_linear_epsilon}},
    factor_is_one("embedding_multiplier"), factor_is_one("residual_multiplier"),
    factor_is_one("logits_multiplier"), factor_is_one("mamba_input_multiplier"),
    factor_is_one("mamba_output_multiplier"), factor_is_one("attention_input_multiplier"),
    factor_is_one("attention_output_multiplier"), factor_is_one("key_multiplier"),
    factor_is_one("mlp_gate_multiplier"), factor_is_one("mlp_output_multiplier"),
    {"", "mamba_multipliers", {.must_be = json::array(), .export_only = true}},
    {"", "mamba_gate", {.must_be = "before-norm", .export_only = true}},
    {"", "softmax_scale", {.export_only = true, .write = write_usual_scale}},
    {"", "attn_logit_softcapping", {.must_be = 0.0, .export_only = true}},
    {"", "final_logit_softcapping", {.must_be = 0.0, .export_only = true}},
    {"", "softmax_type", {.must_be = "vanilla", .export_only = true}},
    {"", no_rope_freq, {.export_only = true, .write = write_not_set<no_rope_freq>}},
    {"", local_base, {.export_only = true, .write = write_not_set<local_base>}},
    {"", clamp, {.export_only = true, .write = write_not_set<clamp>}},
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

}  // namespace teratron::gpt_hf_keys
