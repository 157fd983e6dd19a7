// What a custom training changes: where micro-batches come from, what the model does with them, and the loss. The class
// itself is Megatron-LM's GPT training; derive from it, override what differs, and name it in a Registry (registry.h).
//
//   class Weighted : public TrainStep {
//     StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) override {
//       const at::Tensor weight_SB = batch.loss_mask_SB * 2.0;
//       return {.loss = (losses_SB * weight_SB).sum(), .count = weight_SB.sum()};
//     }
//   };
#pragma once

#include <string>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/train/batches.h"

namespace teratron {

/// The loss of one micro-batch as two sums. The gradient is that of loss / count, averaged over the micro-batches and
/// the data-parallel ranks; with --calculate-per-token-loss that of the sum of all losses over the sum of all counts, which
/// is reported in any case.
struct StepLoss {
  at::Tensor loss;   // one element, differentiable
  at::Tensor count;  // one element: how many tokens, samples... `loss` sums over
  /// Further sums over the same, in the order of metric_names(): one element each.
  std::vector<at::Tensor> metrics = {};
};

/// Under --cuda-graph-impl local forward_step() and loss() are called for a few steps and captured then: what they issue
/// to the GPU is repeated, with the numbers that they had on the host at that time. get_batch() is always called.
class TrainStep {
 public:
  virtual ~TrainStep() = default;

  /// Names under which the metrics are logged beside "lm loss"; the same on every rank.
  virtual std::vector<std::string> metric_names() const { return {}; }
  /// The next micro-batch of this data-parallel rank, on every tensor- and pipeline-parallel rank.
  virtual MicroBatch get_batch(BatchSource& source) { return source.next(); }
  /// On ranks of the last pipeline stage, with what their model's forward() gave.
  virtual StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
    return loss(model.loss(output, batch), batch);
  }
  /// From the loss of every token [S, B] in fp32. Default: the mean over the tokens that the mask counts.
  virtual StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch);
};

}  // namespace teratron
