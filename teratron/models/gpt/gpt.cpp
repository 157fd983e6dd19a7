#include "teratron/models/gpt/gpt.h"

#include "teratron/models/transformer/insert_rows.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/transformer_branches.h"
#include "teratron/nn/linear.h"
#include "teratron/nn/recompute.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

namespace teratron {

namespace {

VocabularyOptions vocabulary_options(const GPTConfig& config) {
  return {.size = config.vocabulary,
          .padded = config.padded_vocabulary,
          .hidden = config.hidden,
          .init = weight_init(config)};
}

Scope root_of(ParameterSet& parameters, const GPTConfig& config) {
  const Scope root(parameters, config.scope);
  return config.frozen ? root.frozen() : root;
}

}  // namespace

GPTConfig stage_config(GPTConfig config, const StageContext& part) {
  if (part.same_tokens) {  // text is generated
    config.experts.options.dispatch = TokenDispatch::none;
    config.mtp_layers = 0;
  }
  return config;
}

GPT::GPT(ParameterSet& parameters, const GPTConfig& config, const StageSpec& stage,
         const TensorParallel& parallel, const Mesh& mesh)
    : Model(stage), config_(config), parallel_(parallel) {
  const Scope root = root_of(parameters, config);
  const Scope embedding = root / "embedding";
  const bool has_logits = stage.head && config.output_layer;
  const bool has_mtp = has_logits && config.mtp_layers > 0;
  if (stage.embedding || has_mtp || (has_logits && config.tied_embeddings)) {
    word_embeddings_ = std::make_unique<VocabParallelEmbedding>(embedding / "word_embeddings",
                                                                vocabulary_options(config), parallel);
  }
  if (stage.embedding && config.embedding_norm) {
    embedding_norm_ = std::make_unique<Norm>(embedding / "word_embeddings_layernorm", config.hidden,
                                             config.norm, parallel, config.norm_weights);
  }
  if (stage.embedding && config.position == PositionEmbedding::learned_absolute) {
    position_embeddings_ = std::make_unique<Embedding>(
        embedding / "position_embeddings",
        Embedding::Options{config.first_position_row + config.max_positions, config.hidden,
                           weight_init(config), config.first_position_row},
        parallel);
  }
  if (config.position == PositionEmbedding::rope) {
    rope_ = std::make_unique<RotaryEmbedding>(
        RotaryEmbedding::Options{config.rope,
                                 config.latent ? config.latent->rope_channels : config.kv_channels,
                                 config.max_positions},
        parameters.options().tensors());
    if (config.local_rope) {
      local_rope_ = std::make_unique<RotaryEmbedding>(
          RotaryEmbedding::Options{*config.local_rope, config.kv_channels, config.max_positions},
          parameters.options().tensors());
    }
  }
  const Scope decoder = root / "decoder";
  layers_ =
      std::make_unique<LayerStack>(decoder / "layers", config, LayerRange{stage.first_layer, stage.layers},
                                   parallel, transformer_layers(config, parallel, mesh));
  if (!stage.head) return;
  final_norm_ = std::make_unique<Norm>(decoder / config.final_norm, config.hidden, config.norm, parallel,
                                       config.norm_weights);
  if (!has_logits) return;
  Parameter& weight =
      config.tied_embeddings
          ? word_embeddings_->weight()
          : (root / "output_layer")
                .parameter("weight", {.shard = vocabulary_shard(vocabulary_options(config), parallel.group),
                                      .init = weight_init(config),
                                      .param_group = ParamGroup::decoupled_lr});
  output_layer_.emplace(
      ParallelMatmul::column(weight, config.fp8_output_layer ? parameters.fp8() : nullptr, parallel));
  if (has_mtp) mtp_ = std::make_unique<MultiTokenPrediction>(root / "mtp", config, parallel, mesh);
}

at::Tensor GPT::embed(const at::Tensor& tokens_SB, const LayerContext& context, const MicroBatch* inserted) {
  at::Tensor x_SBH = word_embeddings_->forward(tokens_SB);
  if (config_.embedding_scale != 1.0) {
    // The factor has the dtype of the embeddings, as in transformers.
    x_SBH = x_SBH * at::scalar_tensor(config_.embedding_scale, x_SBH.scalar_type()).item<double>();
  }
  if (config_.embedding_multiplier != 1.0) x_SBH = x_SBH * config_.embedding_multiplier;
  if (embedding_norm_) x_SBH = embedding_norm_->forward(x_SBH);
  if (inserted && (*inserted)["inserted_RH"].defined())
    x_SBH = insert_rows(x_SBH, (*inserted)["inserted_RH"], (*inserted)["inserted_row"], parallel_);
  if (position_embeddings_) {
    x_SBH = position_embeddings_->add_to_(x_SBH, parallel_.sequence_shard(context.positions_SB));
  }
  if (config_.fp32_residual) x_SBH = x_SBH.to(at::kFloat);
  return bias_dropout_add(
      x_SBH, nullptr, at::Tensor(),
      context.hidden_dropout(config_.hidden_dropout, config_.first_dropout_site, parallel_));
}

Activations GPT::forward(const Activations& input, const MicroBatch& batch, LayerStates* states) {
  LayerContext context = layer_context(batch, config_, rope_.get());
  context.local_rope = local_rope_.get();
  at::Tensor x_SBH = stage().embedding ? embed(batch["tokens"], context, &batch) : input["hidden"];
  notify(stage().embedding ? "embedding" : "the previous stage", x_SBH, batch);
  const Hidden y = layers_->forward(std::move(x_SBH), context, states);
  if (!final_norm_) return {{"hidden", apply_bias_grad(y)}};
  at::Tensor normed_SBH = final_norm_->forward_with_residual(y).normed;
  if (mtp_ && MultiTokenPrediction::runs(batch)) {
    normed_SBH = mtp_->attach_losses(
        normed_SBH, batch, context,
        {[&](const at::Tensor& tokens_SB) { return embed(tokens_SB, context, nullptr); },
         [&](const at::Tensor& hidden_SBH, const at::Tensor& labels_SB) {
           return linear_cross_entropy(scaled(hidden_SBH), *output_layer_, labels_SB, output_loss());
         }});
  }
  notify(("decoder." + config_.final_norm).c_str(), normed_SBH, batch);
  return {{"hidden", normed_SBH}};
}

void GPT::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  layers_->set_activation_hook(hook);
}

at::Tensor GPT::scaled(const at::Tensor& hidden_SBH) const {
  return config_.logits_multiplier == 1.0 ? hidden_SBH : hidden_SBH * config_.logits_multiplier;
}

at::Tensor GPT::logits(const Activations& output) {
  const at::Tensor logits = linear(scaled(output["hidden"]), *output_layer_);
  return soft_capped_logits(logits, config_.logits_softcap).to(logits.scalar_type());
}

OutputLossOptions GPT::output_loss() const {
  return {.vocabulary = config_.vocabulary, .softcap = config_.logits_softcap};
}

at::Tensor GPT::token_losses(const Activations& output, const MicroBatch& batch) {
  const at::Tensor hidden_SBH = scaled(output["hidden"]);
  const at::Tensor& labels_SB = batch["labels"];
  const OutputLossOptions options = output_loss();
  if (config_.loss_chunks == 1) return linear_cross_entropy(hidden_SBH, *output_layer_, labels_SB, options);
  // Under sequence parallelism a chunk is some rows of every rank's sequence shard.
  const int64_t parts = parallel_.sequence_parallel ? parallel_.group.size : 1;
  const int64_t rows = hidden_SBH.size(0);
  const int64_t chunk_rows = (rows + config_.loss_chunks - 1) / config_.loss_chunks;
  // unsafe_split: autograd must not take a collective that writes into one chunk for a change of all.
  const std::vector<at::Tensor> hidden = hidden_SBH.unsafe_split(chunk_rows, 0);
  const std::vector<at::Tensor> labels = labels_SB.unflatten(0, {parts, rows}).split(chunk_rows, 1);
  std::vector<at::Tensor> losses;
  for (size_t i = 0; i < hidden.size(); ++i) {
    const RecomputeFunction chunk_losses = [this, options,
                                            labels_SB = labels[i].flatten(0, 1)](at::TensorList inputs) {
      return linear_cross_entropy(inputs[0], *output_layer_, labels_SB, options);
    };
    const at::Tensor losses_SB =
        recompute(chunk_losses, {hidden[i]}, {.parameters = {&output_layer_->weight()}});
    losses.push_back(losses_SB.unflatten(0, {parts, -1}));
  }
  return at::cat(losses, 1).flatten(0, 1);
}

}  // namespace teratron
