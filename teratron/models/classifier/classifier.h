// Classifiers, whatever model is below them: labels, loss, options of the head, and what their models and
// plans share. Heads: models/gpt/gpt_classifier.h, models/bert/bert_classifier.h.
#pragma once

#include <memory>
#include <string_view>

#include "teratron/models/model_plan.h"
#include "teratron/models/transformer/config.h"

namespace teratron {

/// What a text has.
enum class ClassifierTarget : uint8_t {
  number,   // labels f32 [B, 1]: squared error
  one_of,   // labels i64 [B, 1], a class: cross entropy; samples with a label below 0 do not count
  several,  // labels f32 [B, K], 1 for each label that it has: binary cross entropy
};

struct ClassifierOptions {
  ClassifierTarget target = ClassifierTarget::one_of;
  int64_t outputs = 2;   // K; 1 for a number
  double dropout = 0.0;  // of the pooled state
  /// Rows of a micro-batch that are the choices of one question, one after the other, each with the number of
  /// the right one as its label; with 1 output each. 1: none.
  int64_t choices = 1;
};

/// The head of --task: regression, classification (--num-classes), or one of `teratron tasks`.
ClassifierOptions classifier_options(const Arguments& args);

/// Labels [samples], a class each, from a column [rows, 1] that repeats them for the rows of a sample.
at::Tensor class_labels(const at::Tensor& labels, int64_t samples);

/// The loss of the samples of a micro-batch, logits [B, K].
LossTerm classification_loss(const at::Tensor& logits_BK, const at::Tensor& labels, ClassifierTarget target);

struct ClassifierSchemaOptions {
  int64_t sequence_length = 0;
  ClassifierOptions classifier = {};
};
/// tokens of the first stage and sequence_index [S], the columns of the model, and labels of the last stage:
/// a class, or a value of each output.
BatchSchema classifier_schema(const ClassifierSchemaOptions& options, const BatchSchema& columns);

/// A model with a classification head in place of its heads. The last stage's activations are "logits"
/// [B, K], of questions [B / choices, choices].
class Classifier : public Model {
 public:
  /// `body`: the model without heads.
  Classifier(std::unique_ptr<Model> body, const ClassifierOptions& options)
      : Model(body->stage()), body_(std::move(body)), options_(options) {}

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override {
    return {{.name = "logits", .tensor = output["logits"]}};
  }
  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override {
    return {classification_loss(output["logits"], batch["labels"], options_.target)};
  }
  void set_activation_hook(const ActivationHook& hook) override;

 protected:
  /// The head, on the last stage's hidden states.
  virtual at::Tensor logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch) = 0;
  const ClassifierOptions& options() const { return options_; }

 private:
  std::unique_ptr<Model> body_;
  ClassifierOptions options_;
};

/// `model`: the plan of a model like this one with its own heads. The loss is "loss"; outside training the
/// outputs are of whole texts. `build`, `operators` and other inputs are left to the model, whose name in
/// reports is `name`: "GPT".
ModelPlan classifier_plan(ModelPlan model, std::string_view name, const LanguageModelConfig& config,
                          const ClassifierOptions& options);

}  // namespace teratron
