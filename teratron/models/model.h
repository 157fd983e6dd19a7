// The trainer's interface to a model: one pipeline stage, from micro-batches to the loss of every token.
//
// GPT (gpt/gpt.h) implements it; a program may register another model (train/registry.h).
#pragma once

#include <functional>
#include <memory>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/linear.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

struct GPTConfig;

/// One micro-batch as the model sees it; the whole sequence on every rank.
struct MicroBatch {
  at::Tensor tokens_SB;         // i64
  at::Tensor positions_SB;      // i64
  at::Tensor labels_SB;         // i64; undefined when text is generated
  at::Tensor loss_mask_SB;      // fp32; undefined when text is generated
  at::Tensor segment_start_BS;  // i32 document bounds; undefined: none
  at::Tensor sample_ids_B;      // i64 indices in the whole training, which key dropout; undefined: 0, 1, ...
  bool training = true;         // dropout is active
};

/// sample_ids_B, or 0, 1, ... where it is undefined.
at::Tensor sample_ids(const MicroBatch& batch);

/// What a stage sends to the next.
struct Activations {
  at::Tensor hidden_SBH;  // S local under sequence parallelism; fp32 under GPTConfig::fp32_residual
};

/// Arguments of a stage's constructor. Parameters created in `parameters` are trained, saved and loaded.
struct StageContext {
  ParameterSet& parameters;
  const GPTConfig& config;
  const StageSpec& stage;
  const TensorParallel& parallel;
};

/// Called with the output of each submodule. `sample_ids_B` is the micro-batch's and may be undefined.
using ActivationHook =
    std::function<void(const std::string& part, const at::Tensor& output, const at::Tensor& sample_ids_B)>;

class Model {
 public:
  explicit Model(const StageSpec& stage) : stage_(stage) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// The first stage ignores `input`. The last stage returns the input of logits() and loss().
  virtual Activations forward(const Activations& input, const MicroBatch& batch) = 0;
  /// [S, B, padded vocabulary / tp] of the last stage's activations.
  virtual at::Tensor logits(const Activations& output) = 0;
  /// Loss of every token [S, B] in fp32 from the last stage's activations.
  virtual at::Tensor loss(const Activations& output, const MicroBatch& batch) = 0;

  /// forward() calls the hook with each submodule's output and its name in checkpoints; null: none. Optional:
  /// a model that never calls it can be trained.
  virtual void set_activation_hook(const ActivationHook& hook) { hook_ = hook; }

  const StageSpec& stage() const { return stage_; }

 protected:
  void notify(const char* part, const at::Tensor& output, const MicroBatch& batch) const {
    if (hook_) hook_(part, output, batch.sample_ids_B);
  }

 private:
  StageSpec stage_;
  ActivationHook hook_;
};

using ModelProvider = std::function<std::unique_ptr<Model>(const StageContext&)>;

}  // namespace teratron
