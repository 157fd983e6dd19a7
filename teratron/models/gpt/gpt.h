// GPT as a pipeline stage: some of the layers, with the embedding on the first and the output layer on the
// last stage. One stage with all layers is the whole model.
#pragma once

#include <memory>
#include <optional>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/model.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/norm.h"

namespace teratron {

class GPT : public Model {
 public:
  GPT(ParameterSet& parameters, const GPTConfig& config, const StageSpec& stage,
      const TensorParallel& parallel);

  Activations forward(const Activations& input, const MicroBatch& batch) override {
    return forward(input, batch, nullptr);
  }
  /// For generation: `states` of the layers of the stage; may be null.
  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states);
  at::Tensor logits(const Activations& output) override;
  at::Tensor loss(const Activations& output, const MicroBatch& batch) override;
  void set_activation_hook(const ActivationHook& hook) override;

  const GPTConfig& config() const { return config_; }
  const TensorParallel& parallel() const { return parallel_; }
  at::Device device() const { return device_; }

 private:
  at::Tensor embed(const MicroBatch& batch, const LayerContext& context);
  LayerContext layer_context(const MicroBatch& batch) const;

  GPTConfig config_;
  TensorParallel parallel_;
  at::Device device_;
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<Embedding> position_embeddings_;
  std::unique_ptr<RotaryEmbedding> rope_;
  std::unique_ptr<LayerStack> layers_;
  std::unique_ptr<Norm> final_norm_;
  std::optional<ParallelMatmul> output_layer_;  // with the word embeddings' weight if tied
};

}  // namespace teratron
