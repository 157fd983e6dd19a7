// Hooks of a custom training: where micro-batches come from, the forward step and the loss. The base class is
// Megatron-LM's GPT training; override what differs and return the class from a Registry (registry.h).
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
#include "teratron/train/batch_source.h"

namespace teratron {

/// The loss of one micro-batch as two sums. The gradient is that of loss / count, averaged over micro-batches
/// and data-parallel ranks; with --calculate-per-token-loss that of the sum of all losses over the sum of all
/// counts, which is the reported loss in both cases.
struct StepLoss {
  at::Tensor loss;   // one element, differentiable
  at::Tensor count;  // one element: how many tokens, samples... `loss` sums over
  /// Further sums over the same, in the order of metric_names(): one element each.
  std::vector<at::Tensor> metrics = {};
};

/// With --cuda-graph-impl local, forward_step() and loss() are called in the first steps and then captured:
/// their kernels are replayed with the host values at capture. get_batch() is always called.
class TrainStep {
 public:
  virtual ~TrainStep() = default;

  /// Names of further metrics logged next to "lm loss"; the same on every rank.
  virtual std::vector<std::string> metric_names() const { return {}; }
  /// The next micro-batch of this data-parallel rank; called on every tensor- and pipeline-parallel rank.
  virtual MicroBatch get_batch(BatchSource& source) { return source.next(); }
  /// Called on the last pipeline stage with the output of the model's forward().
  virtual StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
    return loss(model.loss(output, batch), batch);
  }
  /// From the loss of every token [S, B] in fp32. Default: the mean over the tokens selected by the mask.
  virtual StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) {
    return {.loss = (losses_SB * batch.loss_mask_SB.to(losses_SB.scalar_type())).sum(),
            .count = batch.loss_mask_SB.sum()};
  }
};

}  // namespace teratron
