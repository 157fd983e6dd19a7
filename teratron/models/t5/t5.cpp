#include "teratron/models/t5/t5.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

namespace teratron {

namespace {

VocabularyOptions vocabulary_options(const T5Config& config) {
  return {.size = config.vocabulary,
          .padded = config.padded_vocabulary,
          .hidden = config.encoder.hidden,
          .init = weight_init(config.encoder)};
}

// The tokens of each row, then its padding: [0, l_0, S, S + l_1, ...], also where there is no padding, so
// that shapes do not depend on the lengths.
at::Tensor row_bounds(const at::Tensor& lengths_B1, int64_t length) {
  const int64_t rows = lengths_B1.size(0);
  const at::Tensor starts_B1 = (at::arange(rows, lengths_B1.options()) * length).unsqueeze(1);
  const at::Tensor bounds = at::cat({starts_B1, starts_B1 + lengths_B1}, 1).flatten();
  return at::constant_pad_nd(bounds, {0, 1}, rows * length).to(at::kInt);
}

// Tokens of a source on all context-parallel ranks.
int64_t source_length(const MicroBatch& batch) {
  return batch["encoder_index"].size(0) * batch.source_parallel.size();
}

// Every query of a row sees the row's source tokens: no query is in the segment of their padding.
Segments cross_segments(const MicroBatch& batch) {
  const at::Tensor& lengths_B1 = batch["encoder_length"];
  if (!lengths_B1.defined()) return {};
  const int64_t queries = batch["decoder_tokens"].size(0);
  return {.cu_seqlens_q = row_bounds(at::full_like(lengths_B1, queries), queries),
          .cu_seqlens_k = row_bounds(lengths_B1, source_length(batch))};
}

LayerContext encoder_context(const MicroBatch& batch, const TransformerConfig& config) {
  MicroBatch own = batch;
  own.tensors = {{"sequence_index", batch["encoder_index"]}};
  own.context_parallel = batch.source_parallel;
  if (const at::Tensor& lengths_B1 = batch["encoder_length"]; lengths_B1.defined())
    own.tensors.set("cu_seqlens", row_bounds(lengths_B1, source_length(batch)));
  return layer_context(own, config, nullptr);
}

LayerContext decoder_context(const MicroBatch& batch, const TransformerConfig& config) {
  MicroBatch own = batch;
  own.tensors = {{"sequence_index", batch["decoder_index"]}};
  return layer_context(own, config, nullptr);
}

// Tokens of the longest decoder sequence in the micro-batch, those before it and those of other
// context-parallel ranks included.
int64_t decoder_length(const LayerContext& context, const GenerationBatch* generation) {
  if (!generation) return context.positions_SB.size(0) * context.context_parallel.size();
  const at::Tensor& table_RP = generation->table_RP;
  if (table_RP.defined()) return table_RP.size(1) * generation->page_size;  // the same in each step
  int64_t longest = 1;
  for (const GenerationRow& row : generation->rows) longest = std::max(longest, row.sequence.length);
  return longest;
}

}  // namespace

T5::T5(const T5Config& config, const StageContext& part)
    : Model(part.stage),
      config_(config),
      here_(config.encoder, config.decoder, part.stage),
      parallel_(part.parallel) {
  create_embeddings(part);
  encoder_ = make_tower(part, "encoder", here_.encoder, here_.ends_encoder);
  decoder_ = make_tower(part, "decoder", here_.decoder, here_.head);
  if (here_.head) create_head(part);
}

T5::Tower T5::make_tower(const StageContext& part, const std::string& name, const LayerRange& layers,
                         bool ends) const {
  const Scope root(part.parameters);
  const TransformerConfig& config = name == "encoder" ? config_.encoder : config_.decoder;
  Tower tower;
  if (layers.count > 0 && config.position == PositionEmbedding::relative) {
    tower.positions = std::make_unique<RelativePositionBias>(
        root / (name + "_relative_pos_emb") / "relative_attention_bias",
        RelativePositionBias::Options{config.relative, config.heads, weight_init(config)}, parallel_);
  }
  const Scope own = root / name;
  if (layers.count > 0)
    tower.layers = std::make_unique<LayerStack>(own / "layers", config, layers, parallel_,
                                                transformer_layers(config, parallel_, part.mesh));
  if (ends)
    tower.norm = std::make_unique<Norm>(own / "final_layernorm", config.hidden, config.norm, parallel_);
  return tower;
}

void T5::create_embeddings(const StageContext& part) {
  const Scope embedding = Scope(part.parameters) / "embedding";
  const bool embeds = here_.embeds_source || here_.embeds_target;
  if (embeds || (here_.head && config_.tied_embeddings)) {
    word_embeddings_ = std::make_unique<VocabParallelEmbedding>(embedding / "word_embeddings",
                                                                vocabulary_options(config_), parallel_);
  }
  if (!embeds || config_.encoder.position != PositionEmbedding::learned_absolute) return;
  position_embeddings_ = std::make_unique<Embedding>(
      embedding / "position_embeddings",
      Embedding::Options{config_.max_positions, config_.encoder.hidden, weight_init(config_.encoder)},
      parallel_);
}

void T5::create_head(const StageContext& part) {
  const Scope root(part.parameters), output = root / "output_layer";
  const Group& group = parallel_.group;
  Parameter& weight =
      config_.tied_embeddings
          ? word_embeddings_->weight()
          : output.parameter("weight", {.shard = vocabulary_shard(vocabulary_options(config_), group),
                                        .init = weight_init(config_.decoder),
                                        .param_group = ParamGroup::decoupled_lr});
  output_layer_.emplace(ParallelMatmul::column(weight, nullptr, parallel_));
  if (!config_.output_bias) return;
  const Shard shard =
      Shard::split_padded({config_.vocabulary}, 0, config_.padded_vocabulary, group.size, group.rank);
  output_bias_ = &output.parameter("bias", {.shard = shard, .param_group = ParamGroup::no_weight_decay});
}

at::Tensor T5::embed(const at::Tensor& tokens_SB, const TransformerConfig& tower,
                     const LayerContext& context) {
  at::Tensor x_SBH = word_embeddings_->forward(tokens_SB);
  if (position_embeddings_)
    x_SBH = position_embeddings_->add_to_(x_SBH, parallel_.sequence_shard(context.positions_SB));
  if (tower.fp32_residual) x_SBH = x_SBH.to(at::kFloat);
  return bias_dropout_add(x_SBH, nullptr, at::Tensor(),
                          context.hidden_dropout(tower.hidden_dropout, tower.first_dropout_site, parallel_));
}

at::Tensor T5::encode(const at::Tensor& hidden_SBH, const MicroBatch& batch) {
  LayerContext context = encoder_context(batch, config_.encoder);
  at::Tensor x_SBH = hidden_SBH;
  if (here_.embeds_source) x_SBH = embed(batch["encoder_tokens"], config_.encoder, context);
  notify(here_.embeds_source ? "embedding" : "the previous stage", x_SBH, batch);
  if (!encoder_.layers) return x_SBH;
  if (encoder_.positions)
    context.distance_bias =
        encoder_.positions->by_distance(context.positions_SB.size(0) * context.context_parallel.size());
  const Hidden y = encoder_.layers->forward(std::move(x_SBH), context, nullptr);
  if (!encoder_.norm) return apply_bias_grad(y);
  const at::Tensor normed_SBH = encoder_.norm->forward_with_residual(y).normed;
  notify("encoder.final_layernorm", normed_SBH, batch);
  return normed_SBH;
}

at::Tensor T5::decode(const at::Tensor& hidden_SBH, const at::Tensor& encoder_output_SBH,
                      const MicroBatch& batch, LayerStates* states) {
  LayerContext context = decoder_context(batch, config_.decoder);
  context.memory = {.hidden_SBH = encoder_output_SBH,
                    .segments = cross_segments(batch),
                    .context_parallel = batch.source_parallel};
  if (batch.training && config_.decoder.adapter_dropout > 0.0)
    context.memory.dropout = encoder_context(batch, config_.encoder).hidden_dropout(0.0, 0, parallel_);
  at::Tensor x_SBH = hidden_SBH;
  if (here_.embeds_target) x_SBH = embed(batch["decoder_tokens"], config_.decoder, context);
  notify(here_.embeds_target ? "embedding" : "the previous stage", x_SBH, batch);
  if (decoder_.positions) {
    context.distance_bias = decoder_.positions->by_distance(decoder_length(context, batch.generation.get()));
  }
  const Hidden y =
      decoder_.layers ? decoder_.layers->forward(std::move(x_SBH), context, states) : Hidden{x_SBH};
  if (!decoder_.norm) return apply_bias_grad(y);
  const at::Tensor normed_SBH = decoder_.norm->forward_with_residual(y).normed;
  notify("decoder.final_layernorm", normed_SBH, batch);
  return normed_SBH;
}

Activations T5::forward(const Activations& input, const MicroBatch& batch, LayerStates* states) {
  Activations output;
  at::Tensor encoder_output_SBH = input["encoder_output"];
  const bool encodes = batch["encoder_index"].defined();  // else the sources are known (generation)
  if (encodes && (here_.embeds_source || input["hidden"].defined())) {
    const at::Tensor x_SBH = encode(input["hidden"], batch);
    if (here_.ends_encoder) {
      encoder_output_SBH = x_SBH;
    } else {
      output.set("hidden", x_SBH);
    }
  }
  if (encoder_output_SBH.defined()) output.set("encoder_output", encoder_output_SBH);
  if (here_.embeds_target || input["decoder_hidden"].defined())
    output.set("decoder_hidden", decode(input["decoder_hidden"], encoder_output_SBH, batch, states));
  return output;
}

std::unique_ptr<LayerStates> T5::make_states() const {
  return decoder_.layers ? decoder_.layers->make_states() : Model::make_states();
}

void T5::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  for (const Tower* tower : {&encoder_, &decoder_}) {
    if (tower->layers) tower->layers->set_activation_hook(hook);
  }
}

at::Tensor T5::head_input(const Activations& output) const {
  const at::Tensor& x_SBH = output["decoder_hidden"];
  return config_.scaled_output ? x_SBH / std::sqrt(static_cast<double>(config_.decoder.hidden)) : x_SBH;
}

at::Tensor T5::logits(const Activations& output) {
  return apply_bias_grad({linear(head_input(output), *output_layer_, {.bias = output_bias_}), output_bias_});
}

std::vector<InferenceOutput> T5::inference_outputs(const Activations& output) {
  return {{.name = "lm_logits", .tensor = logits(output), .vocabulary_parallel = true}};
}

at::Tensor T5::token_losses(const Activations& output, const MicroBatch& batch) {
  return linear_cross_entropy(head_input(output), *output_layer_, batch["labels"],
                              {.vocabulary = config_.vocabulary, .bias = output_bias_});
}

}  // namespace teratron
