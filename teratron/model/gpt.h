// GPT as a pipeline stage: some of the layers, with the embedding on the first and the head on the last
// stage. One stage with all layers is the whole model.
#pragma once

#include <memory>
#include <vector>

#include "teratron/model/block_stack.h"
#include "teratron/model/stage_spec.h"
#include "teratron/nn/embedding.h"

namespace teratron {

/// One micro-batch as the model sees it; the whole sequence on every rank.
struct MicroBatch {
  at::Tensor tokens_SB;         // i64
  at::Tensor positions_SB;      // i64
  at::Tensor labels_SB;         // i64; undefined when text is generated
  at::Tensor loss_mask_SB;      // fp32; undefined when text is generated
  at::Tensor first_visible_BS;  // i32 document bounds; undefined: none
  int64_t first_sample = 0;     // global number of the first sample, for dropout
  bool training = true;         // dropout is active
};

/// What goes from stage to stage.
struct Activations {
  at::Tensor hidden_SBH;  // S local under sequence parallelism; fp32 under GPTConfig::fp32_residual
};

class GPT {
 public:
  GPT(ParameterSet& parameters, const GPTConfig& config, const StageSpec& stage,
      const TensorParallel& parallel);

  /// The first stage ignores `input`. The last stage's result is normalised, ready for logits().
  Activations forward(const Activations& input, const MicroBatch& batch,
                      std::vector<KeyValueCache>* caches = nullptr);
  /// [S, B, padded vocabulary / tp] of the last stage's activations.
  at::Tensor logits(const Activations& output);
  /// Loss of every token [S, B] in fp32.
  at::Tensor loss(const Activations& output, const MicroBatch& batch);

  const GPTConfig& config() const { return config_; }
  const StageSpec& stage() const { return stage_; }
  const TensorParallel& parallel() const { return parallel_; }
  at::Device device() const { return device_; }

 private:
  at::Tensor embed(const MicroBatch& batch);
  AttentionContext attention_context(const MicroBatch& batch) const;

  GPTConfig config_;
  StageSpec stage_;
  TensorParallel parallel_;
  at::Device device_;
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<Embedding> position_embeddings_;
  std::unique_ptr<RotaryEmbedding> rope_;
  std::unique_ptr<BlockStack> blocks_;
  std::unique_ptr<Norm> final_norm_;
  Parameter* head_ = nullptr;  // the word embedding's weight when tied
};

}  // namespace teratron
