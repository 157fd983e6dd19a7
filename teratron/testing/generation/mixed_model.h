// A decoder whose layers keep different things of a sequence: keys and values, values of another width, a
// state of constant size.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/model_plan.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/nn/delta/delta_cost.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/mamba/mamba_cost.h"
#include "teratron/testing/generation/mixers.h"

namespace teratron {

enum class LayerKind : uint8_t {
  attention,
  wide_keys,    // WideKeyAttention and an MLP
  decayed_sum,  // DecayedSum and an MLP
  lone_sum,     // DecayedSum alone, under other names
  four_norms,   // attention and an MLP, each with a norm of its output, too
  mamba,        // alone
  delta         // a gated delta net, alone
};

inline BranchOptions small_mamba_branch(const TransformerConfig& config) {
  const MambaMixerOptions options{.hidden = config.hidden,
                                  .core = {.heads = 4, .head_dim = 8, .groups = 2, .state = 8, .chunk = 4},
                                  .in_init = weight_init(config),
                                  .out_init = weight_init(config)};
  return {.norm = "norm",
          .part = "mixer",
          .mixer = mixer_factory<MambaMixer>(options),
          .operators = [options](const std::string& name,
                                 const RankSizes& sizes) { return mamba_operators(name, options, sizes); },
          .dropout = own_sites};
}

inline BranchOptions small_delta_branch(const TransformerConfig& config) {
  const DeltaMixerOptions options{
      .hidden = config.hidden,
      .core = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16, .chunk = 4},
      .in_init = weight_init(config),
      .out_init = weight_init(config)};
  return {.norm = "norm",
          .part = "mixer",
          .mixer = mixer_factory<DeltaMixer>(options),
          .operators = [options](const std::string& name,
                                 const RankSizes& sizes) { return delta_operators(name, options, sizes); },
          .dropout = own_sites};
}

inline LayerBranches mixed_branches(const std::vector<LayerKind>& kinds) {
  return [kinds](const TransformerConfig& config, int64_t layer) {
    std::vector<BranchOptions> branches = transformer_branches(config, layer);
    const MixerFactory sum = mixer_factory<DecayedSum>(config.hidden);
    switch (kinds.at(static_cast<size_t>(layer))) {
      case LayerKind::attention:
        break;
      case LayerKind::wide_keys:
        branches[0].mixer = mixer_factory<WideKeyAttention>(config.hidden);
        branches[0].operators = nullptr;
        break;
      case LayerKind::decayed_sum:
        branches[0].mixer = sum;
        branches[0].operators = decayed_sum_operators;
        break;
      case LayerKind::lone_sum:
        branches = {{.norm = "norm",
                     .part = "mixer",
                     .mixer = sum,
                     .operators = decayed_sum_operators,
                     .dropout = own_sites}};
        break;
      case LayerKind::mamba:
        branches = {small_mamba_branch(config)};
        break;
      case LayerKind::delta:
        branches = {small_delta_branch(config)};
        break;
      case LayerKind::four_norms:
        branches[0].output_norm = "post_self_attn_layernorm";
        branches[1].output_norm = "post_mlp_layernorm";
        break;
    }
    return branches;
  };
}

class MixedModel : public Model {
 public:
  MixedModel(const GPTConfig& config, const StageContext& part)
      : Model(part.stage),
        config_(config),
        layers_(Scope(part.parameters) / "layers", config,
                LayerRange{part.stage.first_layer, part.stage.layers}, part.parallel,
                transformer_layers(config, part.parallel, part.mesh)) {
    const VocabularyOptions words{config.vocabulary, config.padded_vocabulary, config.hidden,
                                  weight_init(config)};
    if (part.stage.embedding || part.stage.head)
      words_ =
          std::make_unique<VocabParallelEmbedding>(Scope(part.parameters) / "words", words, part.parallel);
    if (part.stage.head) logits_.emplace(ParallelMatmul::column(words_->weight(), nullptr, part.parallel));
  }

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override {
    const at::Tensor x_SBH = stage().embedding ? words_->forward(batch["tokens"]) : input["hidden"];
    return {{"hidden", layers_.forward(x_SBH, layer_context(batch, config_, nullptr), states).x_SBH}};
  }
  std::unique_ptr<LayerStates> make_states() const override { return layers_.make_states(); }
  at::Tensor logits(const Activations& output) override { return linear(output["hidden"], *logits_); }

 private:
  GPTConfig config_;
  LayerStack layers_;
  std::unique_ptr<VocabParallelEmbedding> words_;
  std::optional<ParallelMatmul> logits_;
};

/// A MixedModel of these sizes, without positions.
inline ModelPlan mixed_plan(GPTConfig config, const std::vector<LayerKind>& kinds) {
  config.layers = std::ssize(kinds);
  config.position = PositionEmbedding::none;
  config.branches = mixed_branches(kinds);
  return {.towers = {{"decoder", config.layers}},
          .batch = {},
          .channels = {{.name = "hidden", .shape = sequence_shape("tokens", config.hidden)}},
          .vocabulary = config.vocabulary,
          .padded_vocabulary = config.padded_vocabulary,
          .max_positions = config.max_positions,
          .build = [config](const StageContext& part) { return std::make_unique<MixedModel>(config, part); }};
}

}  // namespace teratron
