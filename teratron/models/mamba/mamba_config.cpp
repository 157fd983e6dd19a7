#include "teratron/models/mamba/mamba_config.h"

#include "teratron/models/gpt/linear_attention.h"
#include "teratron/models/mamba/hybrid_pattern.h"
#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/nn/mamba/mamba_cost.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

at::ScalarType dtype_named(std::string_view name) {
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
}

BranchOptions mamba_branch(const MambaMixerOptions& options) {
  return {.norm = "norm",
          .part = "mixer",
          .mixer = mixer_factory<MambaMixer>(options),
          .operators = [options](const std::string& name,
                                 const RankSizes& sizes) { return mamba_operators(name, options, sizes); },
          .dropout = own_sites};
}

LayerBranches hybrid_branches(const std::string& layers, const HybridMixers& mixers) {
  return [=](const TransformerConfig& config, int64_t layer) -> std::vector<BranchOptions> {
    const char kind = layers.at(static_cast<size_t>(layer));
    if (kind == hybrid::mamba) return {mamba_branch(mixers.mamba)};
    if (kind == hybrid::delta) return {delta_branch(mixers.delta)};
    if (kind == hybrid::attention) return {self_attention_branch(config, layer)};
    return {feed_forward_branch(config, layer)};
  };
}

MambaMixerOptions mamba_options(const Arguments& args) {
  MambaMixerOptions options{.core = {.heads = args.mamba_num_heads.value(),
                                     .head_dim = args.mamba_head_dim,
                                     .groups = args.mamba_num_groups,
                                     .state = args.mamba_state_dim,
                                     .time_step_min = args.mamba_time_step_min,
                                     .norm_eps = args.mamba_norm_epsilon},
                            .conv_kernel = args.mamba_conv_kernel,
                            .conv_bias = args.mamba_conv_bias,
                            .bias = args.mamba_proj_bias};
  if (args.mamba_time_step_max) options.core.time_step_max = *args.mamba_time_step_max;
  if (args.mamba_inference_conv_states_dtype)
    options.conv_state_dtype = dtype_named(*args.mamba_inference_conv_states_dtype);
  if (args.mamba_inference_ssm_states_dtype != "fp32")
    options.ssm_state_dtype = dtype_named(args.mamba_inference_ssm_states_dtype);
  return options;
}

}  // namespace

void make_hybrid(GPTConfig& config, const std::string& layers, HybridMixers mixers) {
  config.layers = std::ssize(layers);
  if (layers.find(hybrid::attention) == std::string::npos) {
    config.heads = 0;
    if (config.position == PositionEmbedding::rope) config.position = PositionEmbedding::none;
  }
  config.experts.layers.clear();
  if (layers.find(hybrid::experts) != std::string::npos) {
    for (const char kind : layers) config.experts.layers.push_back(kind == hybrid::experts ? 1 : 0);
  }
  config.final_norm = "final_norm";
  config.additions_per_layer = 1;
  mixers.mamba.hidden = mixers.delta.hidden = config.hidden;
  mixers.mamba.in_init = mixers.delta.in_init = weight_init(config);
  mixers.mamba.out_init = mixers.delta.out_init = output_init(config);
  config.branches = hybrid_branches(layers, mixers);
}

GPTConfig mamba_config(const Arguments& args, int64_t tokenizer_size) {
  GPTConfig config = gpt_config(args, tokenizer_size);
  make_hybrid(config, args.hybrid_layer_pattern.value(), {mamba_options(args), delta_options(args, config)});
  return config;
}

}  // namespace teratron
