#include "teratron/models/transformer/layer_options.h"

#include <cmath>

#include "teratron/base/error.h"
#include "teratron/nn/moe/statistics.h"

namespace teratron {

namespace {

// Random numbers that are not dropout's come after those of all dropouts.
constexpr uint64_t router_sites = uint64_t{1} << 48;
// Numbers of a stack's dropouts beyond the first few of each layer.
constexpr uint64_t many_sites = uint64_t{1} << 24;

}  // namespace

Init output_init(const TransformerConfig& config) {
  if (config.xavier_init) return Init::xavier();
  const int64_t layers = config.init_layers > 0 ? config.init_layers : config.layers;
  const auto additions = static_cast<double>(config.additions_per_layer * layers);
  return Init::normal(config.init_std / std::sqrt(additions));
}

// The numbers that most layers need come first, without gaps. They are fixed: a resumed run draws the masks
// of earlier versions.
uint64_t dropout_site(const TransformerConfig& config, int64_t layer, uint64_t number) {
  TERATRON_ASSERT(number < sites_of_layer);
  const uint64_t few = config.cross_attention ? 8 : 4, before = static_cast<uint64_t>(layer) + 1;
  if (number < few) return config.first_dropout_site + few * before + number;
  return config.first_dropout_site + many_sites + sites_of_layer * before + number;
}

static RopeKind rope_kind(const TransformerConfig& config, int64_t layer) {
  if (!config.no_rope.empty() && config.no_rope.at(layer) != 0) return RopeKind::none;
  const bool windowed = !config.windows.empty() && config.windows.at(layer) > 0;
  return config.local_rope && windowed ? RopeKind::local : RopeKind::usual;
}

namespace {

struct QkNorm {
  std::optional<NormOptions> norm = {};
  HeadNormKind kind = HeadNormKind::each_head;
  NormWeights weights = NormWeights::all;
};

QkNorm qk_norm(const TransformerConfig& config, RopeKind rope) {
  if (config.qk_l2_norm) {
    if (rope == RopeKind::none) return {};
    return {.norm = NormOptions{.kind = NormKind::rms, .eps = config.norm.eps}, .weights = NormWeights::none};
  }
  if (!config.qk_norm) return {};
  return {.norm = config.norm,
          .kind = config.qk_norm_all_heads     ? HeadNormKind::all_heads
                  : config.qk_norm_own_weights ? HeadNormKind::own_weight
                                               : HeadNormKind::each_head,
          .weights = config.norm_weights};
}

}  // namespace

AttentionLayerOptions self_attention_options(const TransformerConfig& config, int64_t layer) {
  const RopeKind rope = rope_kind(config, layer);
  const QkNorm qk = qk_norm(config, rope);
  return {.hidden = config.hidden,
          .heads = config.heads,
          .query_groups = config.query_groups,
          .kv_channels = config.kv_channels,
          .mask = config.mask,
          .bias = config.linear_bias || config.attention_bias,
          .qkv_bias = config.linear_bias || config.attention_bias || config.qkv_bias,
          .dropout = config.attention_dropout,
          .dropout_site = dropout_site(config, layer, attention_scores),
          .qkv_init = weight_init(config),
          .output_init = output_init(config),
          .qk_norm = qk.norm,
          .qk_norm_kind = qk.kind,
          .qk_norm_weights = qk.weights,
          .output_gate = config.attention_output_gate,
          .alibi = config.position == PositionEmbedding::alibi,
          .distance_bias = config.position == PositionEmbedding::relative,
          .scale = config.softmax_scale,
          .softcap = config.score_softcap,
          .softmax = config.softmax,
          .rope = rope,
          .window = config.windows.empty() ? 0 : config.windows.at(layer),
          .chunk = rope == RopeKind::none ? 0 : config.chunk,
          .temperature = rope == RopeKind::none ? config.temperature : AttentionTemperature(),
          .score_divisor = config.query_key_layer_scaling ? static_cast<double>(layer + 1) : 1.0,
          .recompute_core = config.recompute.granularity == RecomputeConfig::Granularity::attention_core,
          .context_parallel_comm = config.context_parallel_comm.empty()
                                       ? ContextParallelComm::p2p
                                       : config.context_parallel_comm.at(layer)};
}

// Projections of latents have no biases.
LatentAttentionOptions latent_attention_options(const TransformerConfig& config, int64_t layer) {
  const LatentConfig& latent = config.latent.value();
  LatentAttentionOptions options{.attention = self_attention_options(config, layer),
                                 .query_rank = latent.query_rank,
                                 .kv_rank = latent.kv_rank,
                                 .rope_channels = latent.rope_channels,
                                 .norm = latent.norm};
  options.attention.v_channels = latent.v_channels;
  options.attention.qkv_bias = config.attention_bias;
  options.attention.qk_norm = std::nullopt;
  return options;
}

// The keys have no positions among the queries'.
AttentionLayerOptions cross_attention_options(const TransformerConfig& config, int64_t layer) {
  AttentionLayerOptions options = self_attention_options(config, layer);
  options.mask = Mask::full;
  options.bias = options.qkv_bias = config.linear_bias;
  options.dropout_site = dropout_site(config, layer, cross_scores);
  options.qk_norm = std::nullopt;
  options.output_gate = false;
  options.alibi = false;
  options.distance_bias = false;
  options.window = options.chunk = 0;
  options.temperature = {};
  options.softmax = SoftmaxType::vanilla;
  return options;
}

MlpOptions mlp_options(const TransformerConfig& config) {
  return {.hidden = config.hidden,
          .ffn_hidden = config.ffn_hidden,
          .activation = config.activation,
          .bias = config.linear_bias,
          .gate_multiplier = config.gate_multiplier,
          .glu = config.glu,
          .fc1_init = weight_init(config),
          .fc2_init = output_init(config)};
}

MoeOptions moe_options(const TransformerConfig& config, int64_t layer) {
  MoeOptions options = config.experts.options;
  RouterOptions& router = options.router;
  router.hidden = config.hidden;
  router.init = weight_init(config);
  router.random_site = router_sites + dropout_site(config, layer, attention_scores);
  router.first_sum = config.experts.before(layer) * ExpertStatistics::columns(router.experts);
  ExpertsOptions& experts = options.experts;
  experts.hidden = config.hidden;
  experts.activation = config.activation;
  experts.glu = config.glu;
  experts.fc1_init = weight_init(config);
  experts.fc2_init = output_init(config);
  options.latent_in_init = weight_init(config);
  options.latent_out_init = output_init(config);
  if (options.shared) {
    const int64_t width = options.shared->mlp.ffn_hidden;
    options.shared->mlp = mlp_options(config);
    options.shared->mlp.ffn_hidden = width;
  }
  return options;
}

}  // namespace teratron
