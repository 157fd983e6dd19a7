#include "teratron/models/transformer/config.h"

#include <algorithm>

#include "teratron/base/attention_windows.h"
#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

PositionEmbedding position_embedding(const Arguments& args) {
  if (args.position_embedding_type == "rope") return PositionEmbedding::rope;
  if (args.position_embedding_type == "alibi") return PositionEmbedding::alibi;
  if (args.position_embedding_type == "relative") return PositionEmbedding::relative;
  if (args.position_embedding_type == "none") return PositionEmbedding::none;
  TERATRON_ASSERT(args.position_embedding_type == "learned_absolute", "{}", args.position_embedding_type);
  return PositionEmbedding::learned_absolute;
}

Activation activation(const Arguments& args) {
  if (args.swiglu) return Activation::swiglu;
  if (args.geglu) return Activation::geglu;
  if (args.relu) return Activation::relu;
  if (args.squared_relu) return Activation::squared_relu;
  return args.openai_gelu || args.bias_gelu_fusion ? Activation::gelu : Activation::gelu_erf;
}

RotaryConfig rotary_config(const Arguments& args) {
  return {.base = static_cast<double>(args.rotary_base),
          .percent = args.rotary_percent,
          .interleaved = args.rotary_interleaved,
          .interpolation = static_cast<double>(args.rotary_seq_len_interpolation_factor.value_or(1)),
          .llama3_factor = args.use_rope_scaling ? args.rope_scaling_factor : 0.0,
          .llama3_positions = static_cast<double>(args.rope_scaling_original_max_position_embeddings)};
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

}  // namespace

TransformerConfig transformer_config(const Arguments& args) {
  const int64_t heads = args.num_attention_heads.value();
  return {.layers = args.num_layers.value(),
          .hidden = args.hidden_size.value(),
          .ffn_hidden = args.ffn_hidden_size.value(),
          .heads = heads,
          .query_groups = args.group_query_attention ? args.num_query_groups : heads,
          .kv_channels = args.kv_channels.value(),
          .position = position_embedding(args),
          .rope = rotary_config(args),
          .relative = {.buckets = args.relative_attention_num_buckets,
                       .max_distance = args.relative_attention_max_distance},
          .norm = {.kind = args.normalization == "RMSNorm" ? NormKind::rms : NormKind::layer,
                   .eps = args.norm_epsilon,
                   .zero_centered = args.apply_layernorm_1p},
          .activation = activation(args),
          .linear_bias = args.add_bias_linear,
          .qkv_bias = args.add_qkv_bias,
          .qk_norm = args.qk_layernorm,
          .qk_norm_all_heads = args.qk_layernorm_all_heads,
          .residual_after_norm = args.apply_residual_connection_post_layernorm,
          .norm_outputs = args.norm_position == "output",
          .parallel_residual = args.parallel_residual,
          .fp32_residual = args.fp32_residual_connection && (args.bf16 || args.fp16),
          .query_key_layer_scaling = args.apply_query_key_layer_scaling,
          .softmax_scale = args.softmax_scale.value_or(0.0),
          .windows = attention_windows({args.window_size, args.window_attn_skip_freq}, *args.num_layers),
          .init_std = args.init_method_std,
          .xavier_init = args.init_method_xavier_uniform,
          .hidden_dropout = args.hidden_dropout,
          .attention_dropout = args.attention_dropout,
          .dropout_seed = static_cast<uint64_t>(args.seed),
          .recompute = recompute_config(args),
          .bf16_layers_at_start = args.first_last_layers_bf16 ? args.num_layers_at_start_in_bf16 : 0,
          .bf16_layers_at_end = args.first_last_layers_bf16 ? args.num_layers_at_end_in_bf16 : 0};
}

int64_t model_vocabulary(const Arguments& args, int64_t tokenizer_size) {
  if (args.tokenizer_type == "NullTokenizer") return tokenizer_size;  // is vocab_size
  return std::max(tokenizer_size, args.vocab_size.value_or(0));
}

}  // namespace teratron
