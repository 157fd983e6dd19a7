#include "teratron/models/transformer/config.h"

#include <algorithm>
#include <numeric>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/attention_windows.h"

namespace teratron {

namespace {

PositionEmbedding position_embedding(const Arguments& args) {
  if (args.position_embedding_type == "rope" || args.position_embedding_type == "yarn")
    return PositionEmbedding::rope;
  if (args.position_embedding_type == "alibi") return PositionEmbedding::alibi;
  if (args.position_embedding_type == "relative") return PositionEmbedding::relative;
  if (args.position_embedding_type == "none") return PositionEmbedding::none;
  TERATRON_ASSERT(args.position_embedding_type == "learned_absolute", "{}", args.position_embedding_type);
  return PositionEmbedding::learned_absolute;
}

Activation activation(const Arguments& args) {
  if (args.swiglu || args.quick_geglu) return Activation::swiglu;
  if (args.geglu) return Activation::geglu;
  if (args.relu) return Activation::relu;
  if (args.squared_relu) return Activation::squared_relu;
  return args.openai_gelu || args.bias_gelu_fusion ? Activation::gelu : Activation::gelu_erf;
}

// Megatron-LM's multi-latent attention has YaRN unless --rope-type names another.
bool uses_yarn(const Arguments& args) {
  if (args.position_embedding_type == "yarn") return true;
  return args.multi_latent_attention && args.rope_type.value_or("yarn") == "yarn";
}

Yarn yarn(const Arguments& args) {
  if (!uses_yarn(args)) return {};
  return {.factor = args.rotary_scaling_factor,
          .positions = static_cast<double>(args.yarn_original_max_position_embeddings),
          .beta_fast = args.yarn_beta_fast,
          .beta_slow = args.yarn_beta_slow,
          .whole_channels = args.yarn_correction_range_round_to_int,
          .mscale = args.mscale,
          .mscale_all_dim = args.mscale_all_dim};
}

RotaryConfig rotary_config(const Arguments& args) {
  return {.base = static_cast<double>(args.rotary_base),
          .percent = args.rotary_percent,
          .interleaved = args.rotary_interleaved,
          .reversed = args.rotary_reversed,
          .interpolation = static_cast<double>(args.rotary_seq_len_interpolation_factor.value_or(1)),
          .llama3_factor = args.use_rope_scaling ? args.rope_scaling_factor : 0.0,
          .llama3_positions = static_cast<double>(args.rope_scaling_original_max_position_embeddings),
          .llama3_high = args.rope_scaling_high_freq_factor,
          .yarn = yarn(args),
          .longrope = {.short_factors = args.longrope_short_factors,
                       .long_factors = args.longrope_long_factors,
                       .positions = args.longrope_original_max_position_embeddings,
                       .magnitude = args.longrope_attention_factor}};
}

// Without scaling of positions.
std::optional<RotaryConfig> local_rope(const Arguments& args) {
  if (!args.rotary_base_local) return std::nullopt;
  return RotaryConfig{.base = static_cast<double>(*args.rotary_base_local),
                      .percent = args.rotary_percent,
                      .interleaved = args.rotary_interleaved,
                      .reversed = args.rotary_reversed};
}

GluVariant glu(const Arguments& args) {
  return {.slope = args.quick_geglu ? args.quick_geglu_slope : 1.0,
          .offset = args.glu_linear_offset,
          .limit = args.activation_func_clamp_value.value_or(0.0)};
}

SoftmaxType softmax_type(const Arguments& args) {
  if (args.softmax_type == "learnable") return SoftmaxType::learnable;
  return args.softmax_type == "vanilla" ? SoftmaxType::vanilla : SoftmaxType::off_by_one;
}

NormWeights norm_weights(const Arguments& args) {
  if (args.norm_weights == "none") return NormWeights::none;
  return args.norm_weights == "all" ? NormWeights::all : NormWeights::no_bias;
}

std::vector<ContextParallelComm> context_parallel_comm(const Arguments& args) {
  if (args.context_parallel_size == 1) return {};  // also: towers may have other numbers of layers
  std::vector<ContextParallelComm> comm;
  for (const std::string& type : args.cp_comm_type) {
    comm.push_back(type == "a2a"          ? ContextParallelComm::a2a
                   : type == "all_gather" ? ContextParallelComm::all_gather
                                          : ContextParallelComm::p2p);
  }
  if (comm.size() == 1) comm.resize(static_cast<size_t>(*args.num_layers), comm.front());
  return comm;
}

RecomputeConfig recompute_config(const Arguments& args) {
  using Granularity = RecomputeConfig::Granularity;
  using Method = RecomputeConfig::Method;
  if (args.recompute_granularity == "selective") return {.granularity = Granularity::attention_core};
  if (!args.recompute_granularity) return {};
  return {.granularity = Granularity::layers,
          .method = args.recompute_method == "block" ? Method::block : Method::uniform,
          .layers = args.recompute_num_layers.value(),
          .distribute_inputs = args.distribute_saved_activations};
}

RouterScore router_score(const Arguments& args) {
  if (args.moe_router_score_function == "sigmoid") return RouterScore::sigmoid;
  return args.moe_router_score_function == "softmax" ? RouterScore::softmax : RouterScore::sqrtsoftplus;
}

// Coefficient of a load-balancing type.
double coefficient(const Arguments& args, std::string_view type) {
  const std::vector<std::string>& types = args.moe_router_load_balancing_type;
  const auto found = std::find(types.begin(), types.end(), type);
  return found == types.end() ? 0.0 : args.moe_aux_loss_coeff.at(found - types.begin());
}

bool balances_by(const Arguments& args, std::string_view type) {
  const std::vector<std::string>& types = args.moe_router_load_balancing_type;
  return std::find(types.begin(), types.end(), type) != types.end();
}

RouterOptions router_options(const Arguments& args) {
  std::optional<at::ScalarType> dtype;
  if (args.moe_router_dtype) dtype = *args.moe_router_dtype == "fp64" ? at::kDouble : at::kFloat;
  return {.experts = args.num_experts.value(),
          .routing = {.topk = args.moe_router_topk,
                      .score = router_score(args),
                      .pre_softmax = args.moe_router_pre_softmax,
                      .normalize = !args.moe_router_unnormalized,
                      .normalize_one = args.moe_router_normalize_one,
                      .least_sum = args.moe_router_least_sum,
                      .scaling = args.moe_router_topk_scaling_factor.value_or(1.0),
                      .groups = args.moe_router_num_groups.value_or(0),
                      .group_topk = args.moe_router_group_topk.value_or(0),
                      .group_score_topk = args.moe_router_group_score_topk.value_or(0)},
          .sinkhorn = balances_by(args, "sinkhorn"),
          .bias = args.add_bias_linear,
          .dtype = dtype,
          .jitter = args.moe_input_jitter_eps.value_or(0.0),
          .force_balance = args.moe_router_force_load_balancing,
          .expert_bias = args.moe_router_enable_expert_bias,
          .expert_bias_rate = args.moe_router_bias_update_rate,
          .aux_loss = coefficient(args, "aux_loss"),
          .seq_aux_loss = coefficient(args, "seq_aux_loss"),
          .global_aux_loss = coefficient(args, "global_aux_loss"),
          .z_loss = args.moe_z_loss_coeff.value_or(0.0),
          .capacity_factor = std::max(args.moe_expert_capacity_factor.value_or(0.0), 0.0),
          .drop_policy = args.moe_token_drop_policy == "probs" ? DropPolicy::probs : DropPolicy::position,
          .pad_to_capacity = args.moe_pad_expert_input_to_capacity};
}

ExpertsConfig experts_config(const Arguments& args) {
  if (!args.num_experts) return {};
  MoeOptions options{.router = router_options(args),
                     .experts = {.experts = *args.num_experts,
                                 .ffn_hidden = args.moe_ffn_hidden_size.value(),
                                 .bias = args.add_bias_linear},
                     .dispatch = args.moe_token_dispatcher_type == "alltoall" ? TokenDispatch::all_to_all
                                                                              : TokenDispatch::all_gather,
                     .latent = args.moe_latent_size.value_or(0),
                     .recompute = args.moe_layer_recompute,
                     .inputs_weighted = args.moe_apply_probs_on_input};
  if (args.moe_shared_expert_intermediate_size) {
    options.shared = {.mlp = {.ffn_hidden = *args.moe_shared_expert_intermediate_size},
                      .gate = args.moe_shared_expert_gate};
  }
  return {parse_layer_pattern(args.moe_layer_freq, *args.num_layers).value(), options};
}

}  // namespace

int64_t ExpertsConfig::before(int64_t layer) const {
  return std::accumulate(layers.begin(), layers.begin() + std::min<int64_t>(layer, std::ssize(layers)),
                         int64_t{0});
}

TransformerConfig transformer_config(const Arguments& args) {
  const int64_t heads = args.num_attention_heads.value_or(0);
  return {.layers = args.num_layers.value(),
          .hidden = args.hidden_size.value(),
          .ffn_hidden = args.ffn_hidden_size.value(),
          .heads = heads,
          .query_groups = args.group_query_attention ? args.num_query_groups : heads,
          .kv_channels = args.kv_channels.value_or(0),
          .position = position_embedding(args),
          .rope = rotary_config(args),
          .local_rope = local_rope(args),
          .no_rope = args.no_rope_freq ? parse_no_rope_layers(*args.no_rope_freq, *args.num_layers).value()
                                       : std::vector<int64_t>(),
          .relative = {.buckets = args.relative_attention_num_buckets,
                       .max_distance = args.relative_attention_max_distance},
          .norm = {.kind = args.normalization == "RMSNorm" ? NormKind::rms : NormKind::layer,
                   .eps = args.norm_epsilon,
                   .zero_centered = args.apply_layernorm_1p},
          .norm_weights = norm_weights(args),
          .activation = activation(args),
          .glu = glu(args),
          .linear_bias = args.add_bias_linear,
          .qkv_bias = args.add_qkv_bias,
          .attention_bias = args.add_attention_bias,
          .qk_norm = args.qk_layernorm,
          .attention_output_gate = args.attention_output_gate,
          .qk_norm_all_heads = args.qk_layernorm_all_heads,
          .qk_norm_own_weights = args.qk_layernorm_per_head,
          .qk_l2_norm = args.qk_l2_norm,
          .residual_after_norm = args.apply_residual_connection_post_layernorm,
          .norm_outputs = args.norm_position == "output",
          .sandwich_norms = args.norm_position == "both",
          .parallel_residual = args.parallel_residual,
          .one_parallel_norm = args.parallel_residual_one_norm,
          .fp32_residual = args.fp32_residual_connection && (args.bf16 || args.fp16),
          .query_key_layer_scaling = args.apply_query_key_layer_scaling,
          .residual_multiplier = args.residual_multiplier,
          .softmax_scale = args.softmax_scale.value_or(0.0),
          .score_softcap = args.attn_logit_softcapping,
          .softmax = softmax_type(args),
          .windows = attention_windows({args.window_size, args.window_attn_skip_freq}, *args.num_layers),
          .chunk = args.attention_chunk_size.value_or(0),
          .temperature = {args.attention_temperature_scale, args.attention_temperature_step},
          .context_parallel_comm = context_parallel_comm(args),
          .init_std = args.init_method_std,
          .xavier_init = args.init_method_xavier_uniform,
          .hidden_dropout = args.hidden_dropout,
          .attention_dropout = args.attention_dropout,
          .adapter_dropout = args.lora_rank ? args.lora_dropout : 0.0,
          .dropout_seed = static_cast<uint64_t>(args.seed),
          .recompute = recompute_config(args),
          .offload = {.layers = args.cpu_offloading_num_layers},
          .experts = experts_config(args),
          .bf16_layers_at_start = args.first_last_layers_bf16 ? args.num_layers_at_start_in_bf16 : 0,
          .bf16_layers_at_end = args.first_last_layers_bf16 ? args.num_layers_at_end_in_bf16 : 0};
}

int64_t model_vocabulary(const Arguments& args, int64_t tokenizer_size) {
  if (args.tokenizer_type == "NullTokenizer") return tokenizer_size;  // is vocab_size
  return std::max(tokenizer_size, args.vocab_size.value_or(0));
}

LanguageModelConfig language_model_config(const Arguments& args, int64_t tokenizer_size) {
  LanguageModelConfig config{transformer_config(args)};
  config.vocabulary = model_vocabulary(args, tokenizer_size);
  config.padded_vocabulary = padded_vocab_size(args, config.vocabulary);
  config.max_positions = args.max_position_embeddings.value();
  config.tied_embeddings = !args.untie_embeddings_and_output_weights;
  return config;
}

}  // namespace teratron
