// BERT (Devlin et al. 2018) as Megatron-LM has it: an encoder, pre-norm by default, as a pipeline stage with
// some of the layers, the embedding on the first and the heads on the last stage.
#pragma once

#include <memory>

#include "teratron/models/bert/bert_heads.h"
#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/embedding.h"

namespace teratron {

/// What the heads give for a micro-batch.
struct BertScores {
  /// The predictions' losses, masked or not, and their mask. Context-parallel ranks have parts of them,
  /// filled up with masked ones.
  at::Tensor lm_losses_PB, lm_mask_PB;
  at::Tensor binary_logits_B2;  // undefined without a binary head
};
/// The mean loss of the predictions and, with a binary head, that of the sentence pairs.
std::vector<LossTerm> bert_losses(const BertScores& scores, const MicroBatch& batch);

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
  /// lm_logits of all positions; with a binary head binary_logits [B, 2].
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override;
  /// With a binary head, of micro-batches with row_lengths [B]: the mean of the hidden states between [CLS]
  /// and the last [SEP].
  at::Tensor text_embeddings(const Activations& output) override;
  /// The losses of the predictions: lm_losses_PB.
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override;
  BertScores scores(const Activations& output, const MicroBatch& batch);
  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override {
    return bert_losses(scores(output, batch), batch);
  }
  void set_activation_hook(const ActivationHook& hook) override;
  bool never_waits() const override { return true; }

 private:
  /// With the first position, if the model has a binary head and `with_first`.
  BertScores predict(const Activations& output, const MicroBatch& batch, bool with_first);
  at::Tensor embed(const MicroBatch& batch, const LayerContext& context);
  at::Tensor whole_sequences(const Activations& output) const;

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
