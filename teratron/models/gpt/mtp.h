// Multi-token prediction (DeepSeek-AI 2024, "DeepSeek-V3"): layers after the last predict further tokens.
//
//   z_i = W_i [enorm(embedding of token t + 1 + i); hnorm(h_i)]     h_{i+1} = final_layernorm(layer(z_i))
//
// for depth i from 0 on, with h_0 the output of the final norm; the output layer predicts token t + 2 + i
// from h_{i+1}. The mean of the depths' losses times a factor is added to the gradient, not to the loss that
// is reported. Positions whose token or label is beyond the end of their sample or document do not count.
//
// The last pipeline stage has these layers and an embedding. In generation and logits they do not run.
#pragma once

#include <functional>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/model_plan.h"
#include "teratron/models/transformer/transformer_layer.h"

namespace teratron {

/// Their attention and feed-forward network are those of the last layer: makes the configuration's lists of
/// layers that long.
void add_mtp_layers(GPTConfig& config);
/// For ModelPlan::loss_counts: f64 [1 + depths], what the loss of the model and those of the depths count of
/// a rank's micro-batch.
at::Tensor mtp_loss_counts(const MicroBatch& batch, int64_t depths);
/// `sums` and the losses "mtp_1 loss", ... of the depths.
LayerSums with_mtp_sums(LayerSums sums, const GPTConfig& config);

class MultiTokenPrediction {
 public:
  /// `scope`: "mtp".
  MultiTokenPrediction(const Scope& scope, const GPTConfig& config, const TensorParallel& parallel,
                       const Mesh& mesh);

  /// What of the model its depths share.
  struct Shared {
    std::function<at::Tensor(const at::Tensor& tokens_SB)> embed;
    std::function<at::Tensor(const at::Tensor& hidden_SBH, const at::Tensor& labels_SB)> token_losses;
  };
  /// Whether the micro-batch is one of training.
  static bool runs(const MicroBatch& batch);
  /// hidden, with the gradients of the losses in its backward.
  at::Tensor attach_losses(const at::Tensor& hidden_SBH, const MicroBatch& batch, const LayerContext& context,
                           const Shared& shared);

 private:
  struct Depth {
    Norm embedding_norm, hidden_norm;
    ColumnLinear projection;
    std::unique_ptr<TransformerLayer> layer;
    Norm final_norm;
  };
  double factor_;
  int64_t first_sum_;
  std::vector<Depth> depths_;
};

}  // namespace teratron
