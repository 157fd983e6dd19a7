#include "teratron/models/bert/bert.h"

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/transformer_layer.h"

namespace teratron {

namespace {

// A mean as a loss of one micro-batch.
LossTerm of_microbatch(const at::Tensor& mean) {
  return {.sum = mean, .count = at::ones({}, mean.options().requires_grad(false))};
}

LossTerm masked_mean(const at::Tensor& losses_PB, const at::Tensor& mask_PB) {
  const LossTerm term = masked_loss(losses_PB, mask_PB);
  return of_microbatch(term.sum / term.count.clamp_min(1.0));
}

}  // namespace

Bert::Bert(const BertConfig& config, const StageContext& part)
    : Model(part.stage), config_(config), parallel_(part.parallel) {
  const Scope root(part.parameters);
  const Scope embedding = root / "embedding";
  const auto table = [&](const char* name, int64_t count) {
    return std::make_unique<Embedding>(
        embedding / name, Embedding::Options{count, config.hidden, weight_init(config)}, parallel_);
  };
  if (part.stage.embedding || (part.stage.head && config.tied_embeddings)) {
    const VocabularyOptions words{config.vocabulary, config.padded_vocabulary, config.hidden,
                                  weight_init(config)};
    word_embeddings_ =
        std::make_unique<VocabParallelEmbedding>(embedding / "word_embeddings", words, parallel_);
  }
  if (part.stage.embedding && config.position == PositionEmbedding::learned_absolute)
    position_embeddings_ = table("position_embeddings", config.max_positions);
  if (part.stage.embedding && config.token_types > 0)
    type_embeddings_ = table("tokentype_embeddings", config.token_types);
  if (config.position == PositionEmbedding::rope) {
    const ParameterSet::Options& options = part.parameters.options();
    rope_ = std::make_unique<RotaryEmbedding>(
        RotaryEmbedding::Options{config.rope, config.kv_channels, config.max_positions},
        at::TensorOptions().dtype(options.dtype).device(options.device));
  }
  const Scope encoder = root / "encoder";
  const LayerFactory make_layer = [&](const Scope& scope, int64_t layer) {
    return std::make_unique<TransformerLayer>(scope, config, layer, parallel_);
  };
  layers_ = std::make_unique<LayerStack>(encoder / "layers", config,
                                         LayerRange{part.stage.first_layer, part.stage.layers}, parallel_,
                                         make_layer);
  if (!part.stage.head) return;
  final_norm_ = std::make_unique<Norm>(encoder / "final_layernorm", config.hidden, config.norm, parallel_);
  heads_ = std::make_unique<BertHeads>(
      root, config, config.tied_embeddings ? &word_embeddings_->weight() : nullptr, parallel_);
}

at::Tensor Bert::embed(const MicroBatch& batch, const LayerContext& context) {
  at::Tensor x_SBH = word_embeddings_->forward(batch["tokens"]);
  if (position_embeddings_)
    x_SBH = position_embeddings_->add_to_(x_SBH, parallel_.sequence_shard(context.positions_SB));
  if (type_embeddings_) {
    const at::Tensor& types_SB = batch["types"];
    x_SBH = type_embeddings_->add_to_(
        x_SBH, parallel_.sequence_shard(types_SB.defined() ? types_SB : at::zeros_like(batch["tokens"])));
  }
  if (config_.fp32_residual) x_SBH = x_SBH.to(at::kFloat);
  return bias_dropout_add(
      x_SBH, nullptr, at::Tensor(),
      context.hidden_dropout(config_.hidden_dropout, config_.first_dropout_site, parallel_));
}

Activations Bert::forward(const Activations& input, const MicroBatch& batch, LayerStates*) {
  const LayerContext context = layer_context(batch, config_, rope_.get());
  const at::Tensor x_SBH = stage().embedding ? embed(batch, context) : input["hidden"];
  notify(stage().embedding ? "embedding" : "the previous stage", x_SBH, batch);
  const Hidden y = layers_->forward(x_SBH, context, nullptr);
  if (!final_norm_) return {{"hidden", apply_bias_grad(y)}};
  const at::Tensor normed_SBH = final_norm_->forward_with_residual(y).normed;
  notify("encoder.final_layernorm", normed_SBH, batch);
  return {{"hidden", normed_SBH}};
}

void Bert::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  layers_->set_activation_hook(hook);
}

at::Tensor Bert::logits(const Activations& output) {
  const at::Tensor& hidden_SBH = output["hidden"];
  return heads_->lm_logits(parallel_.sequence_parallel ? gather_from(hidden_SBH, 0, parallel_.group)
                                                       : hidden_SBH);
}

std::vector<InferenceOutput> Bert::inference_outputs(const Activations& output) {
  std::vector<InferenceOutput> outputs = {
      {.name = "lm_logits", .tensor = logits(output), .vocabulary_parallel = true}};
  if (!config_.binary_head) return outputs;
  const at::Tensor& hidden_SBH = output["hidden"];
  const at::Tensor first_1B = at::zeros({1, hidden_SBH.size(1)}, hidden_SBH.options().dtype(at::kLong));
  outputs.push_back({.name = "binary_logits",
                     .tensor = heads_->binary_logits(select_positions(hidden_SBH, first_1B, parallel_)[0])});
  return outputs;
}

at::Tensor Bert::token_losses(const Activations& output, const MicroBatch& batch) {
  return heads_->lm_losses(select_positions(output["hidden"], batch["masked_positions"].t(), parallel_),
                           batch["masked_labels"].t());
}

std::vector<LossTerm> Bert::losses(const Activations& output, const MicroBatch& batch) {
  const at::Tensor mask_PB = batch["masked_loss_mask"].t();
  if (!config_.binary_head) return {masked_mean(token_losses(output, batch), mask_PB)};
  // The first position, for the pooler, and the predictions: one collective.
  const at::Tensor positions_BP = batch["masked_positions"];
  const at::Tensor all_NB = at::constant_pad_nd(positions_BP, {1, 0}, 0).t();
  const at::Tensor selected_NBH = select_positions(output["hidden"], all_NB, parallel_);
  const at::Tensor losses_PB = heads_->lm_losses(selected_NBH.slice(0, 1), batch["masked_labels"].t());
  const at::Tensor binary_B2 = heads_->binary_logits(selected_NBH[0]);
  const at::Tensor sop =
      at::cross_entropy_loss(binary_B2.to(losses_PB.scalar_type()), batch["is_random"].squeeze(1));
  return {masked_mean(losses_PB, mask_PB), of_microbatch(sop)};
}

}  // namespace teratron
