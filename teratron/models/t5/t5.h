// T5 (Raffel et al. 2020), an encoder and a decoder with cross attention, pre-norm, as a pipeline stage with
// some of the layers: with learned positions as Megatron-LM has it, or with relative ones as published.
#pragma once

#include <memory>
#include <optional>

#include "teratron/models/model.h"
#include "teratron/models/t5/t5_config.h"
#include "teratron/models/transformer/encoder_decoder_stage.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/norm.h"

namespace teratron {

/// Columns (t5_schema()): encoder_tokens, encoder_index [Se, B]; encoder_length [B, 1], the tokens of each
/// row without padding (undefined: rows without padding); decoder_tokens, decoder_index, labels and
/// loss_mask [Sd, B]. Without encoder_index the decoder alone runs, with the sources that `states` hold.
/// Padding at the end of the decoder's rows needs no mask: attention is causal, and no loss counts.
/// Context-parallel ranks have tokens of both sequences (source_parallel: of the encoder's).
///
/// Channels: the encoder's "hidden" before its end, "encoder_output" from there on, "decoder_hidden".
/// Word and position embeddings are parameters of the same names on the stages where encoder and decoder
/// begin, and with tied embeddings on the last; a tower's relative positions on each stage with layers of it.
class T5 : public Model {
 public:
  T5(const T5Config& config, const StageContext& part);

  /// encode() and decode(), as far as the stage has their layers.
  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  /// The states of the decoder's layers.
  std::unique_ptr<LayerStates> make_states() const override;
  /// Layers of the encoder, on hidden states or, where it begins, on encoder_tokens; with the final norm
  /// where it ends.
  at::Tensor encode(const at::Tensor& hidden_SBH, const MicroBatch& batch);
  /// As encode(), for the decoder, whose cross attention sees `encoder_output_SBH`. `states`: as of
  /// forward().
  at::Tensor decode(const at::Tensor& hidden_SBH, const at::Tensor& encoder_output_SBH,
                    const MicroBatch& batch, LayerStates* states);
  at::Tensor logits(const Activations& output) override;
  /// lm_logits.
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override;
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override;
  void set_activation_hook(const ActivationHook& hook) override;
  bool never_waits() const override { return true; }

 private:
  struct Tower {
    std::unique_ptr<RelativePositionBias> positions;  // null: none, or the model's learned ones
    std::unique_ptr<LayerStack> layers;               // null without layers here
    std::unique_ptr<Norm> norm;                       // where the tower ends
  };
  void create_embeddings(const StageContext& part);
  Tower make_tower(const StageContext& part, const std::string& name, const LayerRange& layers,
                   bool ends) const;
  void create_head(const StageContext& part);
  at::Tensor embed(const at::Tensor& tokens_SB, const TransformerConfig& tower, const LayerContext& context);
  at::Tensor head_input(const Activations& output) const;

  T5Config config_;
  EncoderDecoderStage here_;
  TensorParallel parallel_;
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<Embedding> position_embeddings_;
  Tower encoder_;
  Tower decoder_;
  std::optional<ParallelMatmul> output_layer_;
  Parameter* output_bias_ = nullptr;
};

}  // namespace teratron
