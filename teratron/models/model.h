// The engine's interface to a model: one pipeline stage, from micro-batches to losses.
//
// The stages of a model exchange named tensors, which its plan lists (model_plan.h). GPT (gpt/gpt.h) is the
// example.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/nn/layer.h"
#include "teratron/nn/linear.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

/// Tensors by name.
class NamedTensors {
 public:
  using Map = std::map<std::string, at::Tensor, std::less<>>;
  NamedTensors() = default;
  NamedTensors(std::initializer_list<Map::value_type> tensors) : tensors_(tensors) {}

  /// Undefined if there is none.
  const at::Tensor& operator[](std::string_view name) const;
  void set(std::string_view name, const at::Tensor& tensor) {
    tensors_.insert_or_assign(std::string(name), tensor);
  }
  Map::const_iterator begin() const { return tensors_.begin(); }
  Map::const_iterator end() const { return tensors_.end(); }

 private:
  Map tensors_;
};

/// What a stage sends to the next, by channel. Language models have the channel "hidden" [S, B, H], S local
/// under sequence parallelism.
using Activations = NamedTensors;

/// One micro-batch on the device: the columns of the model's schema that its pipeline stage has.
///
/// Rows may be packed (train/data/row_packing.h): then sequence columns are [T, 1], the tokens of all samples
/// one after the other, cu_seqlens has the bounds of the samples, and further columns say where each token
/// comes from (packed_rows()). Sample columns stay [B, ...].
struct MicroBatch {
  NamedTensors tensors = {};
  /// i64 [B] indices in the whole training, which key dropout; undefined without dropout.
  at::Tensor sample_ids_B = {};
  bool training = true;                   // dropout is active
  ContextParallel context_parallel = {};  // sequence columns hold this rank's tokens of their samples
  ContextParallel source_parallel = {};   // of the columns of a source, which an encoder reads
  int64_t padded_length = 0;              // of packed rows: S of the rows with padding
  std::shared_ptr<const GenerationBatch> generation = nullptr;  // its rows; null: no text is generated
  AuxiliaryLosses auxiliary = {};                               // set by the engine

  const at::Tensor& operator[](std::string_view column) const { return tensors[column]; }
};

/// Undefined unless the rows are packed.
PackedRows packed_rows(const MicroBatch& batch);

/// One loss of a micro-batch as two sums of one element each.
struct LossTerm {
  at::Tensor sum;    // differentiable
  at::Tensor count;  // how many tokens, samples... `sum` is over
};

/// The losses [S, B] of the tokens that the mask selects.
LossTerm masked_loss(const at::Tensor& losses_SB, const at::Tensor& mask_SB);

/// A tensor that the model gives outside training.
struct InferenceOutput {
  std::string name;
  at::Tensor tensor;
  /// [S, B, padded vocabulary / tp], this rank's part; else [B, ...], the same on every tensor-parallel rank.
  bool vocabulary_parallel = false;
};

/// Arguments of a stage's constructor. Parameters created in `parameters` are trained, saved and loaded.
struct StageContext {
  ParameterSet& parameters;
  const StageSpec& stage;
  const TensorParallel& parallel;
  Mesh mesh = {};            // for layers that are sharded over other axes than the tensor-parallel one
  bool same_tokens = false;  // on all ranks of a stage, as when text is generated
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

  /// The first stage ignores `input`. The last stage returns the input of logits() and losses(). `states`: of
  /// make_states(), in a generation; else null.
  virtual Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) = 0;
  /// What the layers of the stage keep of the sequences of a generation. Default: nothing, as for models that
  /// do not generate text.
  virtual std::unique_ptr<LayerStates> make_states() const { return std::make_unique<LayerStates>(); }
  /// Rows [R, H] that take the place of word embeddings, image after image, from pixel values [N, ...]: on
  /// the first stage, outside training. Default: undefined, as for models without images.
  virtual at::Tensor image_rows(const at::Tensor& /*pixels*/) { return {}; }
  /// [S, B, padded vocabulary / tp] of the last stage's activations. Default: undefined.
  virtual at::Tensor logits(const Activations& output);
  /// Computed from the last stage's activations. Default: "logits", the result of logits().
  virtual std::vector<InferenceOutput> inference_outputs(const Activations& output);
  /// One vector per sample, [B, H], of the last stage's activations. Default: undefined.
  virtual at::Tensor text_embeddings(const Activations& output);
  /// Loss of every token [S, B] in fp32 from the last stage's activations, masked or not. Default: undefined.
  virtual at::Tensor token_losses(const Activations& output, const MicroBatch& batch);
  /// The losses named by the model's plan. Default: one, token_losses() where column loss_mask is set.
  virtual std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch);

  /// forward() calls the hook with each submodule's output and its name in checkpoints; null: none. Optional:
  /// a model that never calls it can be trained.
  virtual void set_activation_hook(const ActivationHook& hook) { hook_ = hook; }

  /// Whether forward and backward are known never to wait for the device, so that they can become CUDA graphs
  /// without being asked to (--cuda-graph-impl auto). A derived class inherits the answer. It overrides this,
  /// too, if something that it overrides waits.
  virtual bool never_waits() const { return false; }

  const StageSpec& stage() const { return stage_; }

 protected:
  void notify(const char* part, const at::Tensor& output, const MicroBatch& batch) const {
    if (hook_) hook_(part, output, batch.sample_ids_B);
  }

 private:
  StageSpec stage_;
  ActivationHook hook_;
};

}  // namespace teratron
