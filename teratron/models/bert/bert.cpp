#include "teratron/models/bert/bert.h"

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/select_positions.h"
#include "teratron/models/transformer/transformer_branches.h"

namespace teratron {

namespace {

// A mean as a loss of one micro-batch, of which `ranks` have parts.
LossTerm of_microbatch(const at::Tensor& mean, int64_t ranks) {
  const double share = 1.0 / static_cast<double>(ranks);
  return {.sum = mean, .count = at::full({}, share, mean.options().requires_grad(false))};
}

// The mean over positions 1 to length - 2, in fp32 or wider.
at::Tensor inner_mean(const at::Tensor& x_SBH, const at::Tensor& lengths_B) {
  const at::Tensor x = x_SBH.scalar_type() == at::kDouble ? x_SBH : x_SBH.to(at::kFloat);
  const at::Tensor index_S1 = at::arange(x.size(0), lengths_B.options()).unsqueeze(1);
  const at::Tensor inner_SB = index_S1.ge(1).logical_and(index_S1.lt(lengths_B - 1));
  const at::Tensor count_B1 = (lengths_B - 2).clamp_min(1).unsqueeze(1);
  return (x * inner_SB.unsqueeze(2).to(x.scalar_type())).sum(0) / count_B1;
}

// This rank's part of the mean over all ranks' losses.
LossTerm masked_mean(const at::Tensor& losses_PB, const at::Tensor& mask_PB, const Group& group) {
  const LossTerm term = masked_loss(losses_PB, mask_PB);
  const at::Tensor count = reduce_from(term.count.detach(), group);
  return of_microbatch(term.sum / count.clamp_min(1.0), group.size);
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
  const bool tied_head = part.stage.head && config.tied_embeddings && config.pretraining_heads;
  if (part.stage.embedding || tied_head) {
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
    rope_ = std::make_unique<RotaryEmbedding>(
        RotaryEmbedding::Options{config.rope, config.kv_channels, config.max_positions},
        part.parameters.options().tensors());
  }
  const Scope encoder = root / "encoder";
  layers_ = std::make_unique<LayerStack>(encoder / "layers", config,
                                         LayerRange{part.stage.first_layer, part.stage.layers}, parallel_,
                                         transformer_layers(config, parallel_, part.mesh));
  if (!part.stage.head) return;
  final_norm_ = std::make_unique<Norm>(encoder / "final_layernorm", config.hidden, config.norm, parallel_);
  if (!config.pretraining_heads) return;
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
  at::Tensor x_SBH = stage().embedding ? embed(batch, context) : input["hidden"];
  notify(stage().embedding ? "embedding" : "the previous stage", x_SBH, batch);
  const Hidden y = layers_->forward(std::move(x_SBH), context, nullptr);
  if (!final_norm_) return {{"hidden", apply_bias_grad(y)}};
  const at::Tensor normed_SBH = final_norm_->forward_with_residual(y).normed;
  notify("encoder.final_layernorm", normed_SBH, batch);
  return {{"hidden", normed_SBH}, {"row_lengths", batch["row_lengths"]}};
}

void Bert::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  layers_->set_activation_hook(hook);
}

at::Tensor Bert::whole_sequences(const Activations& output) const {
  const at::Tensor& hidden_SBH = output["hidden"];
  return parallel_.sequence_parallel ? gather_from(hidden_SBH, 0, parallel_.group) : hidden_SBH;
}

at::Tensor Bert::logits(const Activations& output) {
  return heads_->lm_logits(whole_sequences(output));
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

at::Tensor Bert::text_embeddings(const Activations& output) {
  const at::Tensor& lengths_B = output["row_lengths"];
  if (!config_.binary_head || !lengths_B.defined()) return {};
  return inner_mean(whole_sequences(output), lengths_B);
}

at::Tensor Bert::token_losses(const Activations& output, const MicroBatch& batch) {
  return predict(output, batch, /*with_first=*/false).lm_losses_PB;
}

BertScores Bert::scores(const Activations& output, const MicroBatch& batch) {
  return predict(output, batch, config_.binary_head && config_.learns_pairs);
}

// The first position, for the pooler, and the predictions: one collective. Context-parallel rank 0 has the
// pooler's; the others run it, too, on a position whose loss does not count.
BertScores Bert::predict(const Activations& output, const MicroBatch& batch, bool with_first) {
  const ContextParallel& context = batch.context_parallel;
  const TokenPlaces places{packed_rows(batch), context};
  const int64_t ranks = context.size(), first = with_first ? 1 : 0;
  const int64_t count = batch["masked_positions"].size(1) + first, rows = (count + ranks - 1) / ranks;
  const auto padded = [&](const char* column) {
    return at::constant_pad_nd(batch[column], {first, rows * ranks - count}, 0).t();
  };
  const int64_t skipped = ranks == 1 ? first : 0;
  const auto own = [&](const char* column) {
    return padded(column).narrow(0, context.group.rank * rows, rows).slice(0, skipped);
  };
  const at::Tensor positions_NB = padded("masked_positions"), &hidden = output["hidden"];
  const at::Tensor selected_NBH = ranks == 1 ? select_positions(hidden, positions_NB, parallel_, places)
                                             : select_own_positions(hidden, positions_NB, parallel_, places);
  BertScores scores{
      heads_->lm_losses(selected_NBH.slice(0, skipped), own("masked_labels")), own("masked_loss_mask"), {}};
  if (with_first) scores.binary_logits_B2 = heads_->binary_logits(selected_NBH[0]);
  return scores;
}

std::vector<LossTerm> bert_losses(const BertScores& scores, const MicroBatch& batch) {
  const Group& group = batch.context_parallel.group;
  const LossTerm lm = masked_mean(scores.lm_losses_PB, scores.lm_mask_PB, group);
  if (!scores.binary_logits_B2.defined()) return {lm};
  const at::Tensor logits_B2 = scores.binary_logits_B2.to(scores.lm_losses_PB.scalar_type());
  const at::Tensor pairs = at::cross_entropy_loss(logits_B2, batch["is_random"].squeeze(1));
  return {lm, of_microbatch(group.rank == 0 ? pairs : pairs * 0.0, group.size)};
}

}  // namespace teratron
