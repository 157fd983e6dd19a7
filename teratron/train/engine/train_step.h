// Hooks of a custom training: where micro-batches come from, and the losses. Derive from TrainStep for other
// losses than the model's, else from ModelLosses, and return the class from a Registry (registry.h).
//
//   class Weighted : public TrainStep {
//     StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
//       return {.losses = {masked_loss(model.token_losses(output, batch), 2.0 * batch["loss_mask"])}};
//     }
//   };
#pragma once

#include <string>
#include <vector>

#include "teratron/models/model.h"
#include "teratron/train/data/batch_source.h"

namespace teratron {

/// The losses of one micro-batch, as many as the model's plan names. The gradient is that of the sum of their
/// means, averaged over micro-batches and data-parallel ranks; with --calculate-per-token-loss (one loss
/// only) that of the sum of all losses over the sum of all counts. Reported are sums over sums in both cases.
struct StepLoss {
  std::vector<LossTerm> losses;
  /// Further sums over what the first loss counts, in the order of metric_names(): one element each.
  std::vector<at::Tensor> metrics = {};
};

/// With --cuda-graph-impl local, forward_step() is called in the first steps and then captured: its kernels
/// are replayed with the host values at capture. get_batch() is always called.
class TrainStep {
 public:
  virtual ~TrainStep() = default;

  /// Names of further metrics logged next to the losses; the same on every rank.
  virtual std::vector<std::string> metric_names() const { return {}; }
  /// The next micro-batch of this data-parallel rank; called on every tensor- and pipeline-parallel rank.
  /// `padding`: as takes_packed_rows() allows.
  virtual MicroBatch get_batch(BatchSource& source, Padding padding) { return source.next(padding); }
  /// Whether forward_step() takes micro-batches with packed rows (MicroBatch).
  virtual bool takes_packed_rows() const { return false; }
  /// Whether forward_step() is known never to wait for the device, nor to read host values that change
  /// between steps, so that it can become a CUDA graph without being asked to (--cuda-graph-impl auto).
  virtual bool never_waits() const { return false; }
  /// Whether its losses are negative log likelihoods, of which the log also has the perplexity.
  virtual bool has_perplexity() const { return true; }
  /// Called on the last pipeline stage with the output of the model's forward().
  virtual StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
    return {.losses = model.losses(output, batch)};
  }
  /// With --return-logits: called in evaluations on the last pipeline stage after forward_step(), with the
  /// logits [S, B, vocabulary] of this data-parallel rank (under context parallelism of this rank's tokens),
  /// the same on every tensor-parallel rank. all_gather(logits, 1, mesh.data_parallel()) has those of all
  /// data-parallel ranks, if --full-validation does not give them different numbers of samples.
  virtual void on_logits(const at::Tensor& /*logits_SBV*/, const MicroBatch& /*batch*/) {}
};

/// Leaves the losses to the model, which takes packed rows and becomes CUDA graphs. To derive from for other
/// batches.
class ModelLosses : public TrainStep {
 public:
  bool takes_packed_rows() const override { return true; }
  bool never_waits() const override { return true; }
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) final {
    return TrainStep::forward_step(model, output, batch);
  }
};

}  // namespace teratron
