#include "teratron/models/transformer/transformer_branches.h"

#include "teratron/nn/attention/attention_cost.h"
#include "teratron/nn/cost/mlp_cost.h"
#include "teratron/nn/mla/mla_cost.h"
#include "teratron/nn/mlp.h"
#include "teratron/nn/moe/moe_cost.h"

namespace teratron {

namespace {

struct BranchNames {
  const char *norm, *part;
  const char* second_norm;  // of the output, besides that of the input: a name of NVIDIA's Megatron Bridge
};

// The norm keeps its name where it normalizes the output.
BranchOptions branch_of(const TransformerConfig& config, const BranchNames& names) {
  BranchOptions branch{.part = names.part};
  (config.norm_outputs ? branch.output_norm : branch.norm) = names.norm;
  if (config.sandwich_norms) branch.output_norm = names.second_norm;
  return branch;
}

template <typename Options>
MixerOperators mixer_operators(std::vector<Operator> (*operators)(const std::string&, const Options&,
                                                                  const RankSizes&),
                               const Options& options) {
  return [=](const std::string& name, const RankSizes& sizes) { return operators(name, options, sizes); };
}

std::vector<Operator> mlp_operators(const std::string& name, const MlpOptions& options,
                                    const RankSizes& sizes) {
  return {mlp_operator(name, options, sizes)};
}

}  // namespace

BranchOptions self_attention_branch(const TransformerConfig& config, int64_t layer) {
  BranchOptions branch =
      branch_of(config, {"input_layernorm", "self_attention", "self_attention.linear_proj.post_layernorm"});
  if (config.latent) {
    const LatentAttentionOptions options = latent_attention_options(config, layer);
    branch.mixer = mixer_factory<LatentAttention>(options);
    branch.operators = mixer_operators(latent_attention_operators, options);
    branch.dropout = attention_output;
    return branch;
  }
  const AttentionLayerOptions options = self_attention_options(config, layer);
  branch.mixer = mixer_factory<SelfAttention>(options);
  branch.operators = mixer_operators(self_attention_operators, options);
  branch.dropout = attention_output;
  return branch;
}

BranchOptions cross_attention_branch(const TransformerConfig& config, int64_t layer) {
  const AttentionLayerOptions options = cross_attention_options(config, layer);
  BranchOptions branch = branch_of(
      config, {"pre_cross_attn_layernorm", "cross_attention", "cross_attention.linear_proj.post_layernorm"});
  branch.mixer = mixer_factory<CrossAttention>(options);
  branch.operators = mixer_operators(cross_attention_operators, options);
  branch.dropout = cross_output;
  return branch;
}

BranchOptions feed_forward_branch(const TransformerConfig& config, int64_t layer) {
  BranchOptions branch = branch_of(config, {"pre_mlp_layernorm", "mlp", "mlp.linear_fc2.post_layernorm"});
  branch.dropout = mlp_output;
  if (config.experts.in(layer)) {
    const MoeOptions options = moe_options(config, layer);
    branch.mixer = [options](const Scope& scope, const TensorParallel& parallel, const Mesh& mesh) {
      return std::make_unique<MoeLayer>(scope, options, parallel, mesh);
    };
    branch.operators = mixer_operators(moe_operators, options);
    return branch;
  }
  branch.mixer = mixer_factory<Mlp>(mlp_options(config));
  branch.operators = mixer_operators(mlp_operators, mlp_options(config));
  return branch;
}

std::vector<BranchOptions> transformer_branches(const TransformerConfig& config, int64_t layer) {
  std::vector<BranchOptions> branches = {self_attention_branch(config, layer)};
  if (config.cross_attention) branches.push_back(cross_attention_branch(config, layer));
  branches.push_back(feed_forward_branch(config, layer));
  for (size_t i = 1; config.parallel_residual && i < branches.size(); ++i) {
    branches[i].input = config.one_parallel_norm ? BranchInput::same_normed : BranchInput::same_stream;
    if (config.one_parallel_norm) branches[i].norm = "";
  }
  return branches;
}

std::vector<BranchOptions> branches_of(const TransformerConfig& config, int64_t layer) {
  return config.branches ? config.branches(config, layer) : transformer_branches(config, layer);
}

LayerFactory transformer_layers(const TransformerConfig& config, const TensorParallel& parallel,
                                const Mesh& mesh) {
  return [=](const Scope& scope, int64_t layer) {
    return std::make_unique<TransformerLayer>(scope, config, layer, parallel, mesh);
  };
}

}  // namespace teratron
