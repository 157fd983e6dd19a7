// Mamba-2 and its hybrids in files of other programs: Hugging Face's mamba2 and nemotron_h (hf_bamba.cpp,
// hf_falcon_h1.cpp and hf_granite_hybrid.cpp have others).
#include "teratron/models/family_formats.h"
#include "teratron/models/mamba/hf_keys.h"
#include "teratron/models/megatron_rows.h"

namespace teratron {

namespace mamba_hf {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;
using namespace gpt_hf_keys;

namespace {

constexpr int64_t unlimited_positions = 1 << 20;  // recurrences need none

// transformers' Nemotron-H has a lower limit alone, by this name.
void write_no_upper_limit(std::string_view, HfConfig& config) {
  if (!config.settings.at(most).is_null()) config.problem("{} is set", most);
}

// --- mamba2 ---

void read_mamba_layers(std::string_view key, HfConfig& config) {
  const int64_t layers = config.get(key, nullptr);
  if (layers > most_layers) return config.unsupported(key);
  set_pattern(config, std::string(static_cast<size_t>(layers), hybrid::mamba));
}

void write_mamba_layers(std::string_view key, HfConfig& config) {
  const std::string layers = pattern_of(config);
  if (layers.find_first_not_of(hybrid::mamba) != std::string::npos)
    config.problem("{} is {}", pattern_setting, layers);
  config.keys[key] = layers.size();
}

// --- nemotron_h ---

struct LayerType {
  char kind;
  std::string_view name, old_name;
};
constexpr LayerType layer_types[] = {{hybrid::mamba, "linear_attention", "mamba"},
                                     {hybrid::attention, "full_attention", "attention"},
                                     {hybrid::mlp, "mlp", "mlp"},
                                     {hybrid::experts, "moe", "moe"}};

// A list of types, or older files' pattern.
void read_layers(std::string_view key, HfConfig& config) {
  constexpr std::string_view old_key = "hybrid_override_pattern";
  std::string layers;
  if (!config.has(key) && config.has(old_key)) {
    HybridPattern pattern = parse_hybrid_pattern(config.get(old_key, "").get<std::string>());
    if (!pattern.problems.empty() || !pattern.segments.empty()) return config.unsupported(old_key);
    return set_pattern(config, pattern.layers);
  }
  const json types = config.get(key, json::array());
  for (const json& type : types) {
    const auto found = std::ranges::find_if(
        layer_types, [&](const LayerType& row) { return type == row.name || type == row.old_name; });
    if (found == std::end(layer_types)) return config.unsupported(key);
    layers += found->kind;
  }
  if (layers.empty()) return config.problem("'{}' names no layers", key);
  set_pattern(config, layers);
}

void write_layers(std::string_view key, HfConfig& config) {
  const std::string layers = pattern_of(config);
  json types = json::array();
  for (const char kind : layers) {
    const auto* const found = std::ranges::find(layer_types, kind, &LayerType::kind);
    if (found == std::end(layer_types))
      return config.problem("{} = {} has layers of kind {}", pattern_setting, layers, kind);
    types.push_back(found->name);
  }
  config.keys.update({{std::string(key), types}, {"hybrid_override_pattern", layers}});
}

// Groups of experts, of which transformers adds the two best scores; probabilities are divided by their sum.
void read_groups(HfConfig& config) {
  const int64_t groups = config.get("n_group", 1), chosen = config.get("topk_group", 1);
  if (groups > 1)
    config.settings.update({{"moe_router_num_groups", groups},
                            {"moe_router_group_topk", chosen},
                            {"moe_router_group_score_topk", 2}});
  const bool normalizes = config.get("norm_topk_prob", true);
  if (normalizes != (config.get("num_experts_per_tok", 2) > 1)) config.unsupported("norm_topk_prob");
}

void write_groups(HfConfig& config) {
  const int64_t groups = std::max<int64_t>(config.size("moe_router_num_groups"), 1);
  const int64_t chosen = std::max<int64_t>(config.size("moe_router_group_topk"), 1);
  const int64_t topk = config.size("moe_router_topk"), given = config.size("moe_router_group_score_topk");
  if (groups > 1 && (given > 0 ? given : topk / chosen) != 2)
    config.problem("the score of a group of experts is not the sum of the two best");
  config.keys.update({{"n_group", groups}, {"topk_group", chosen}, {"norm_topk_prob", topk > 1}});
}

void read_experts(std::string_view key, HfConfig& config) {
  if (!has_experts(config)) return;
  config.settings.update({{"num_experts", config.get(key, 8)},
                          {"moe_router_topk", config.get("num_experts_per_tok", 2)},
                          {std::string(expert_ffn), config.get("moe_intermediate_size", 7688)},
                          {std::string(shared_ffn), config.get("moe_shared_expert_intermediate_size", 7688)},
                          {"moe_router_score_function", "sigmoid"},
                          {"moe_router_enable_expert_bias", true},
                          {"moe_router_dtype", "fp32"}});
  if (config.has("moe_latent_size"))
    config.settings["moe_latent_size"] = config.get("moe_latent_size", nullptr);
  const double scaling = config.get("routed_scaling_factor", 1.0);
  if (scaling != 1.0) config.settings["moe_router_topk_scaling_factor"] = scaling;
  read_groups(config);
}

void write_experts(std::string_view key, HfConfig& config) {
  if (!has_experts(config)) return;
  const json& settings = config.settings;
  for (const auto& [setting, value] :
       std::initializer_list<std::pair<std::string_view, json>>{{"moe_router_score_function", "sigmoid"},
                                                                {"moe_router_enable_expert_bias", true},
                                                                {"moe_router_unnormalized", false},
                                                                {"moe_router_normalize_one", false},
                                                                {"moe_apply_probs_on_input", false},
                                                                {"moe_shared_expert_gate", false}}) {
    if (settings.at(setting) != value)
      config.problem("{} is {}, not {}", setting, settings.at(setting).dump(), value.dump());
  }
  if (settings.at(shared_ffn).is_null()) config.problem("there are no shared experts");
  const json& scaling = settings.at("moe_router_topk_scaling_factor");
  config.keys.update({{std::string(key), settings.at("num_experts")},
                      {"num_experts_per_tok", settings.at("moe_router_topk")},
                      {"moe_intermediate_size", settings.at(expert_ffn)},
                      {"moe_shared_expert_intermediate_size", settings.at(shared_ffn)},
                      {"moe_latent_size", settings.at("moe_latent_size")},
                      {"n_shared_experts", 1},
                      {"routed_scaling_factor", scaling.is_null() ? json(1.0) : scaling}});
  write_groups(config);
}

HfLayerKinds layer_kinds(HfConfig& config, int64_t layers) {
  const std::string pattern = pattern_of(config);
  if (std::ssize(pattern) != layers) config.problem("{} has not {} layers", pattern_setting, layers);
  HfLayerKinds kinds;
  for (const char kind : pattern) {
    const bool latent =
        kind == hybrid::experts && !config.settings.value("moe_latent_size", json()).is_null();
    const auto* const found = std::ranges::find(layer_types, kind, &LayerType::kind);
    kinds.push_back({found == std::end(layer_types) ? "" : found->name});
    if (latent) kinds.back().push_back("latent");
    if (kind == hybrid::experts) kinds.back().push_back(latent ? "narrow" : "wide");
  }
  return kinds;
}

// clang-format off

const HfKeyOptions no_write = {.export_only = true, .write = [](std::string_view, HfConfig&) {}};

// Rows of both model types.
const std::vector<HfKey> shared_keys = {
    {"hidden_size", hidden}, {"vocab_size", vocab, embedded},
    {"use_bias", "mamba_proj_bias", {.otherwise = false}}, {"use_conv_bias", "mamba_conv_bias", {.otherwise = true}},
    {"conv_kernel", "mamba_conv_kernel", {.otherwise = 4}}, {"n_groups", "mamba_num_groups", {.otherwise = 8}},
    setting_is("normalization", "RMSNorm"), {"layer_norm_epsilon", "norm_epsilon", {.otherwise = 1e-5}},
    {"layer_norm_epsilon", "mamba_norm_epsilon", {.otherwise = 1e-5, .write = write_norm_epsilon}},
    setting_is("position_embedding_type", "none"), setting_is("add_bias_linear", false),
    {"", "add_qkv_bias", {.otherwise = false, .write = write_qkv_bias}},
    {"", "hidden_dropout", {.otherwise = 0.0}}, {"", "window_size", no_windows},
    {"tie_word_embeddings", untied, {.otherwise = false, .negate = true}}};

const std::vector<HfKey> mamba2_keys = {
    {"num_hidden_layers", pattern_setting, {.read = read_mamba_layers, .write = write_mamba_layers}},
    {"num_heads", "mamba_num_heads", {.otherwise = 128}}, {"head_dim", "mamba_head_dim", {.otherwise = 64}},
    {"state_size", "mamba_state_dim", {.otherwise = 128}},
    {"expand", "", {.read = read_expand, .write = write_expand}}, key_is("hidden_act", "silu"),
    {"time_step_limit", "", {.read = read_time_step_limit, .write = write_time_step_limit}},
    {"", positions, {.otherwise = unlimited_positions}}, {"", "seq_length", {.otherwise = 2048}}, {"", "attention_dropout", {.otherwise = 0.0}},
    {"", ffn, {.derived = "4*hidden_size"}}};

const std::vector<HfKey> nemotron_h_keys = {
    {"layers_block_type", pattern_setting, {.read = read_layers, .write = write_layers}},
    {"mamba_num_heads", "mamba_num_heads", {.otherwise = 128}},
    {"mamba_head_dim", "mamba_head_dim", {.otherwise = 64}},
    {"ssm_state_size", "mamba_state_dim", {.otherwise = 128}}, key_is("mamba_hidden_act", "silu"),
    key_is("mamba_proj_bias", false), key_is("mlp_bias", false), key_is("attention_bias", false),
    {"time_step_min", least, {.otherwise = 1e-3}}, {"", most, {.export_only = true, .write = write_no_upper_limit}},
    {"max_position_embeddings", positions, {.otherwise = 4096}}, {"intermediate_size", ffn, {.otherwise = 21504}},
    {"mlp_hidden_act", "squared_relu", {.otherwise = "relu2", .values = {{"relu2", true}}}},
    {"num_attention_heads", heads, {.otherwise = 32}}, {"num_key_value_heads", "num_query_groups", groups},
    {"head_dim", "kv_channels", {.otherwise = 128}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}},
    {"n_routed_experts", "num_experts", {.read = read_experts, .write = write_experts}},
    {"", "moe_router_topk_scaling_factor", no_write}};

const HfTensorOptions in_attention = {.in = "full_attention"},
                      in_mlp = {.in = "mlp"}, in_experts = {.in = "moe"}, in_latent = {.in = "latent"};
const std::vector<HfTensorRow> norm_rows = {{"norm.weight", same, {"norm.weight"}, {hidden}, {.in = "linear_attention"}}};
const std::vector<HfTensorRow> other_rows = {
    {"input_layernorm.weight", same, {"norm.weight"}, {hidden}, in_attention},
    {"self_attention.linear_qkv.weight", qkv_grouped,
     {"mixer.q_proj.weight", "mixer.k_proj.weight", "mixer.v_proj.weight"}, {queries, hidden}, in_attention},
    {"self_attention.linear_proj.weight", same, {"mixer.o_proj.weight"}, {hidden, queries}, in_attention},
    {"pre_mlp_layernorm.weight", same, {"norm.weight"}, {hidden}, in_mlp},
    {"mlp.linear_fc1.weight", same, {"mixer.up_proj.weight"}, {ffn, hidden}, in_mlp},
    {"mlp.linear_fc2.weight", same, {"mixer.down_proj.weight"}, {hidden, ffn}, in_mlp},
    {"pre_mlp_layernorm.weight", same, {"norm.weight"}, {hidden}, in_experts},
    {"mlp.router.weight", same, {"mixer.gate.weight"}, {"num_experts", hidden}, in_experts},
    {"mlp.router.expert_bias", same, {"mixer.gate.e_score_correction_bias"}, {"num_experts"}, in_experts},
    {"mlp.fc1_latent_proj.weight", same, {"mixer.fc1_latent_proj.weight"}, {"moe_latent_size", hidden}, in_latent},
    {"mlp.fc2_latent_proj.weight", same, {"mixer.fc2_latent_proj.weight"}, {hidden, "moe_latent_size"}, in_latent},
    {"mlp.shared_experts.linear_fc1.weight", same, {"mixer.shared_experts.up_proj.weight"}, {shared_ffn, hidden},
     in_experts},
    {"mlp.shared_experts.linear_fc2.weight", same, {"mixer.shared_experts.down_proj.weight"}, {hidden, shared_ffn},
     in_experts}};

const json mamba2_defaults = {{"vocab_size", 32768}, {"hidden_size", 4096}, {"num_hidden_layers", 64}};
const json nemotron_h_defaults = {{"vocab_size", 131072}, {"hidden_size", 4096}, {"num_key_value_heads", 8}};

const std::vector<std::string_view> other_keys = {
    "chunk_size", "time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "time_step_limit",
    "rescale_prenorm_residual", "residual_in_fp32", "expand", "use_mamba_kernels", "mamba_ssm_cache_dtype",
    "num_logits_to_keep", "layer_types"};
const std::vector<std::string_view> nemotron_h_other_keys = {
    "hybrid_override_pattern", "num_hidden_layers", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    "moe_latent_size", "moe_shared_expert_overlap", "n_shared_experts", "num_experts_per_tok",
    "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob", "num_nextn_predict_layers",
    "mtp_layers_block_type", "mtp_hybrid_override_pattern", "hidden_dropout", "output_router_logits",
    "sliding_window", "num_local_experts"};
// clang-format on

// The experts' rows, of tokens or of what the projections before them give.
std::vector<HfTensorRow> expert_rows(std::string_view size, std::string_view in) {
  return {{"mlp.experts.#.linear_fc1.weight",
           same,
           {"mixer.experts.#.up_proj.weight"},
           {expert_ffn, size},
           {.in = in}},
          {"mlp.experts.#.linear_fc2.weight",
           same,
           {"mixer.experts.#.down_proj.weight"},
           {size, expert_ffn},
           {.in = in}}};
}

HfFamily family_of(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own,
                   const json& defaults) {
  HfFamily family{
      .model_type = type,
      .architecture = std::string(architecture),
      .prefix = "backbone.",
      .keys = all_keys(shared_keys, own),
      .tensors = {{"embedding.",
                   "backbone.",
                   {{"word_embeddings.weight", same, {"embeddings.weight"}, {vocab, hidden}, copied}}},
                  {"decoder.layers.*.", "backbone.layers.*.", norm_rows, "num_layers"},
                  {"decoder.layers.*.mixer.", "backbone.layers.*.mixer.", mixer_rows(), "num_layers"},
                  {"decoder.", "backbone.", {{"final_norm.weight", same, {"norm_f.weight"}, {hidden}}}},
                  {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {{untied}}}}}},
      .defaults = defaults,
      .other_keys = other_keys,
      .unread = {"mtp."},
      .layer_kinds = layer_kinds,
      .peft_task = "CAUSAL_LM"};
  return family;
}

HfFamily mamba2() {
  HfFamily family = family_of("mamba2", "Mamba2ForCausalLM", mamba2_keys, mamba2_defaults);
  family.old_ends = {{"embeddings.weight", "embedding.weight"}};  // state-spaces' own files
  return family;
}

HfFamily nemotron_h() {
  HfFamily family = family_of("nemotron_h", "NemotronHForCausalLM", nemotron_h_keys, nemotron_h_defaults);
  family.aliases = {{"layer_types", "layers_block_type"}, {"num_local_experts", "n_routed_experts"}};
  family.other_keys.insert(family.other_keys.end(), nemotron_h_other_keys.begin(),
                           nemotron_h_other_keys.end());
  family.fused_experts = {{"mixer.experts.up_proj", {"mixer.experts.#.up_proj.weight"}},
                          {"mixer.experts.down_proj", {"mixer.experts.#.down_proj.weight"}}};
  std::vector<HfTensorRow>& rows = family.tensors[1].rows;
  for (const std::vector<HfTensorRow>& more :
       {other_rows, expert_rows(hidden, "wide"), expert_rows("moe_latent_size", "narrow")})
    rows.insert(rows.end(), more.begin(), more.end());
  return family;
}

}  // namespace

static FamilyFormats all() {
  return {.hf = {mamba2(), nemotron_h(), bamba(), falcon_h1(), granitemoehybrid()},
          .refused_hf =
              {{"zamba2", "attention is shared by layers at several depths, with an adapter for each"},
               {"kimi_linear",
                "decays are of each channel of the keys, and attention is multi-head latent attention"}},
          .megatron = MegatronModel{
              .embeddings = megatron_rows::embeddings,
              .stacks = {{.ours = "decoder",
                          .layer = megatron_rows::joined(
                              {megatron_rows::mamba, megatron_rows::layer(), megatron_rows::delta_net}),
                          .final_norm = "final_norm",
                          .stacks_layers = false}},
              .heads = megatron_rows::output,
              .signs = {"mixer.in_proj."},
              .arguments = {"hybrid_layer_pattern", "hybrid_override_pattern"},
              .has_core = true,
              .tokenizer = "GPT2BPETokenizer"}};
}

}  // namespace mamba_hf

FamilyFormats mamba_formats() {
  return mamba_hf::all();
}

}  // namespace teratron
