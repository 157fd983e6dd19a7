// BERT (Devlin et al. 2018) as Megatron-LM has it: an encoder, pre-norm by default, as a pipeline stage with
// some of the layers, the embedding on the first and the heads on the last stage.
#pragma once

#include <memory>
#include <typeinfo>

#include "teratron/models/bert/bert_heads.h"
#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/embedding.h"

namespace teratron {

/// Columns (bert_schema()): tokens, types and sequence_index [S, B]; cu_seqlens, which makes the tokens of a
/// row one segment and its padding another (undefined: rows without padding); the predictions
/// masked_positions, masked_labels and masked_loss_mask [B, P]; is_random [B, 1].
///
/// The LM head runs on the P masked positions alone, which gives the loss and the gradients of all positions.
/// Losses are means of the micro-batch, which are averaged: masked tokens of micro-batches with fewer of them
/// weigh more, as in Megatron-LM.
class Bert : public Model {
 public:
  Bert(const BertConfig& config, const StageContext& part);

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  at::Tensor logits(const Activations& output) override;
  /// lm_logits of all positions, and with a binary head binary_logits [B, 2].
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override;
  /// Of the predictions: [P, B].
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override;
  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override;
  void set_activation_hook(const ActivationHook& hook) override;
  bool never_waits() const override { return typeid(*this) == typeid(Bert); }  // a derived class might

 private:
  at::Tensor embed(const MicroBatch& batch, const LayerContext& context);

  BertConfig config_;
  TensorParallel parallel_;
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<Embedding> position_embeddings_;
  std::unique_ptr<Embedding> type_embeddings_;
  std::unique_ptr<RotaryEmbedding> rope_;
  std::unique_ptr<LayerStack> layers_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<BertHeads> heads_;
};

}  // namespace teratron
