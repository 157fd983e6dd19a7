// A train step of Python as the engine calls it (train/engine/train_step.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/module/held.h"
#include "python/module/samples.h"

#include "teratron/models/bert/bert.h"
#include "teratron/optim/param_group_rules.h"
#include "teratron/train/engine/train_step.h"

namespace teratron::python {

/// A micro-batch that Python may keep: it shares the tensors, and nothing else.
struct PythonBatch {
  MicroBatch batch;

  explicit PythonBatch(const MicroBatch& from) : batch(from) {
    batch.auxiliary = {};
    batch.generation = nullptr;
  }
  explicit PythonBatch(const Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) batch.tensors.set(name, tensor);
  }
};

/// The model's output in a forward_step(), until that returns. RuntimeError afterwards.
class ModelOutput {
 public:
  ModelOutput(Model& model, const Activations& output, const MicroBatch& batch)
      : model_(&model), output_(&output), batch_(&batch) {}
  /// [S, B], with gradient.
  at::Tensor token_losses() const;
  /// [S, B, padded vocabulary / tp].
  at::Tensor logits() const;
  std::vector<LossTerm> losses() const;
  /// A BERT's, with gradient. RuntimeError for another model.
  BertScores bert_scores() const;
  void end() { model_ = nullptr; }

 private:
  Model& model() const;
  Model* model_;
  const Activations* output_;
  const MicroBatch* batch_;
};

/// Where a get_batch() takes micro-batches from, until that returns.
struct Source {
  BatchSource* source;
  std::optional<MicroBatch> last;
  MicroBatch next();
};

/// `object`: with metrics (names), all_columns (whether every pipeline stage has the columns of all),
/// forward_step(ModelOutput, PythonBatch) or None, get_batch(Source) or None. With the GIL. `losses`: how
/// many the model has.
std::unique_ptr<TrainStep> python_step(const Held& object, size_t losses);

/// (name, shape) -> None or an object with weight_decay and lr_mult.
ParamGroupFunction python_param_groups(const Held& function);

}  // namespace teratron::python
