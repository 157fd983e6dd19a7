// GPT as a pipeline stage: some of the layers, with the embedding on the first and the output layer on the
// last stage. One stage with all layers is the whole model.
#pragma once

#include <memory>
#include <optional>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/gpt/mtp.h"
#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

namespace teratron {

/// For a stage: where its ranks have the same tokens, without dispatch of these to experts, and without
/// multi-token prediction.
GPTConfig stage_config(GPTConfig config, const StageContext& part);

/// Columns: tokens, labels and loss_mask [S, B]; sequence_index or position_ids [S, B]; cu_seqlens, if
/// attention stays within documents (gpt_schema()). Of a model with other inputs than tokens also inserted_RH
/// and inserted_row [S, B], see insert_rows(): their rows take the place of word embeddings.
class GPT : public Model {
 public:
  /// `mesh`: of the experts.
  GPT(ParameterSet& parameters, const GPTConfig& config, const StageSpec& stage,
      const TensorParallel& parallel, const Mesh& mesh = {});

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  std::unique_ptr<LayerStates> make_states() const override { return layers_->make_states(); }
  at::Tensor logits(const Activations& output) override;
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override;
  void set_activation_hook(const ActivationHook& hook) override;
  /// GEMMs of experts wait in some precisions and on some GPUs, which the settings say
  /// (settings/checks/graphs.h).
  bool never_waits() const override { return !config_.experts.options.router.sinkhorn; }

 private:
  /// `inserted` has the rows that take the place of word embeddings, if there are any.
  at::Tensor embed(const at::Tensor& tokens_SB, const LayerContext& context, const MicroBatch* inserted);
  OutputLossOptions output_loss() const;
  /// What the output layer multiplies.
  at::Tensor scaled(const at::Tensor& hidden_SBH) const;

  GPTConfig config_;
  TensorParallel parallel_;
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<Norm> embedding_norm_;
  std::unique_ptr<Embedding> position_embeddings_;
  std::unique_ptr<RotaryEmbedding> rope_, local_rope_;
  std::unique_ptr<LayerStack> layers_;
  std::unique_ptr<Norm> final_norm_;
  std::optional<ParallelMatmul> output_layer_;  // with the word embeddings' weight if tied
  std::unique_ptr<MultiTokenPrediction> mtp_;   // null: none
};

}  // namespace teratron
