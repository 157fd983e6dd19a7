// What a trainer needs of a model: one pipeline stage of it, from micro-batches to the loss of every token.
//
// GPT (gpt.h) is one; a program may bring another (train/registry.h).
#pragma once

#include <functional>
#include <memory>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/linear.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

/// One micro-batch as the model sees it; the whole sequence on every rank.
struct MicroBatch {
  at::Tensor tokens_SB;         // i64
  at::Tensor positions_SB;      // i64
  at::Tensor labels_SB;         // i64; undefined when text is generated
  at::Tensor loss_mask_SB;      // fp32; undefined when text is generated
  at::Tensor first_visible_BS;  // i32 document bounds; undefined: none
  int64_t first_sample = 0;     // number of the first sample in the run
  at::Tensor samples_B;         // i64 numbers of all samples, for dropout; undefined: counted from the first
  bool training = true;         // dropout is active
};

/// samples_B, or what it would be.
at::Tensor sample_numbers(const MicroBatch& batch);

/// What goes from stage to stage.
struct Activations {
  at::Tensor hidden_SBH;  // S local under sequence parallelism; fp32 under GPTConfig::fp32_residual
};

/// What a stage is made from. The parameters it creates there are trained, saved and loaded.
struct ModelPart {
  ParameterSet& parameters;
  const GPTConfig& config;
  const StageSpec& stage;
  const TensorParallel& parallel;
};

/// Is told what a part of the model gave for the micro-batch that begins with `first_sample`.
using PartObserver =
    std::function<void(const std::string& part, const at::Tensor& output, int64_t first_sample)>;

class Model {
 public:
  explicit Model(const StageSpec& stage) : stage_(stage) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// The first stage ignores `input`. The last stage's result is what logits() takes.
  virtual Activations forward(const Activations& input, const MicroBatch& batch) = 0;
  /// [S, B, padded vocabulary / tp] of the last stage's activations.
  virtual at::Tensor logits(const Activations& output) = 0;
  /// Loss of every token [S, B] in fp32, from the last stage's activations.
  virtual at::Tensor loss(const Activations& output, const MicroBatch& batch) = 0;

  /// From now on forward() tells what each of its parts gives, under the parts' names in checkpoints; null: it does not.
  /// A model that never tells can still be trained.
  virtual void observe(const PartObserver& observer) { observer_ = observer; }

  const StageSpec& stage() const { return stage_; }

 protected:
  void tell(const char* part, const at::Tensor& output, const MicroBatch& batch) const {
    if (observer_) observer_(part, output, batch.first_sample);
  }

 private:
  StageSpec stage_;
  PartObserver observer_;
};

using ModelProvider = std::function<std::unique_ptr<Model>(const ModelPart&)>;

}  // namespace teratron
