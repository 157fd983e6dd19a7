#include "teratron/models/mamba/mamba_config.h"

#include <algorithm>
#include <cmath>

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

BranchOptions multiplied(BranchOptions branch, const BranchMultipliers& multipliers) {
  branch.input_multiplier = multipliers.input;
  branch.output_multiplier = multipliers.output;
  return branch;
}

// Both mixers read what one norm gives.
std::vector<BranchOptions> both_branches(const BranchOptions& mamba, const BranchOptions& attention) {
  std::vector<BranchOptions> branches = {mamba, attention};
  branches[0].part = "mamba_mixer";
  branches[1].norm.clear();
  branches[1].input = BranchInput::same_normed;
  return branches;
}

LayerBranches hybrid_branches(const std::string& layers, const HybridMixers& mixers) {
  return [=](const TransformerConfig& config, int64_t layer) -> std::vector<BranchOptions> {
    const auto mamba = [&] { return multiplied(mamba_branch(mixers.mamba), mixers.of_mamba); };
    const auto attention = [&] {
      return multiplied(self_attention_branch(config, layer), mixers.of_attention);
    };
    const char kind = layers.at(static_cast<size_t>(layer));
    if (kind == hybrid::mamba) return {mamba()};
    if (kind == hybrid::delta) return {delta_branch(mixers.delta)};
    if (kind == hybrid::attention) return {attention()};
    if (kind == hybrid::both) return both_branches(mamba(), attention());
    return {multiplied(feed_forward_branch(config, layer), mixers.of_mlp)};
  };
}

MambaGate gate_named(std::string_view name) {
  if (name == "alone") return MambaGate::alone;
  return name == "after-norm" ? MambaGate::after_norm : MambaGate::before_norm;
}

bool divides_mamba_heads(const Arguments& args) {
  const int64_t tp = args.tensor_model_parallel_size;
  const int64_t groups = std::max<int64_t>(args.mamba_num_groups / tp, 1);
  return divides_heads({.heads = args.mamba_num_heads.value() / tp, .groups = groups},
                       args.context_parallel_size);
}

MambaMixerOptions mamba_options(const Arguments& args) {
  MambaMixerOptions options{.core = {.heads = args.mamba_num_heads.value(),
                                     .head_dim = args.mamba_head_dim,
                                     .groups = args.mamba_num_groups,
                                     .state = args.mamba_state_dim,
                                     .time_step_min = args.mamba_time_step_min,
                                     .gate = gate_named(args.mamba_gate),
                                     .norm_eps = args.mamba_norm_epsilon},
                            .conv_kernel = args.mamba_conv_kernel,
                            .conv_bias = args.mamba_conv_bias,
                            .bias = args.mamba_proj_bias,
                            .multipliers = args.mamba_multipliers,
                            .passes_states = passes_states(args, divides_mamba_heads(args))};
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
  if (!has_attention(layers)) {
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
  config.gate_multiplier = args.mlp_gate_multiplier;
  if (args.key_multiplier != 1.0) {
    // A factor of the keys is one of the scores.
    const double usual = 1.0 / std::sqrt(static_cast<double>(config.kv_channels));
    config.softmax_scale = args.key_multiplier * (config.softmax_scale > 0.0 ? config.softmax_scale : usual);
  }
  make_hybrid(config, args.hybrid_layer_pattern.value(),
              {.mamba = mamba_options(args),
               .delta = delta_options(args, config),
               .of_mamba = {args.mamba_input_multiplier, args.mamba_output_multiplier},
               .of_attention = {args.attention_input_multiplier, args.attention_output_multiplier},
               .of_mlp = {.output = args.mlp_output_multiplier}});
  return config;
}

}  // namespace teratron
