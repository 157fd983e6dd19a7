// Accuracies of a finetuned BERT on files, over all data-parallel ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tasks/finetune/finetune_task.h"
#include "teratron/train/classification/classification_step.h"
#include "teratron/train/trainer.h"

namespace teratron {

/// The train step of a task. In evaluations it keeps the probabilities of the classes, on the last stage.
class TaskStep : public ClassificationStep {
 public:
  TaskStep() : ClassificationStep(ClassifierTarget::one_of) {}
  MicroBatch get_batch(BatchSource& source, Padding padding) override;
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override;

  /// Called before the next micro-batch is read, once.
  void before_batch(std::function<void()> call) { before_batch_ = std::move(call); }
  void collect(bool on) { collects_ = on; }
  /// [samples, classes] of each micro-batch since the last call, fp64.
  std::vector<at::Tensor> take_probabilities() { return std::exchange(probabilities_, {}); }

 private:
  std::function<void()> before_batch_;
  bool collects_ = false;
  std::vector<at::Tensor> probabilities_;
};

struct Predictions {
  std::vector<std::vector<double>> probabilities;  // of each sample
  int64_t correct = 0;
  double seconds = 0.0;
};
int64_t most_probable(const std::vector<double>& probabilities);

/// Every sample once. The same on all ranks. Collective.
Predictions predict(Trainer& trainer, TaskStep& step, const FinetuneTask& task,
                    const std::shared_ptr<const PairSamples>& samples);

}  // namespace teratron
