// BERT with a classification head (Devlin et al. 2018): the class of a text, several labels, or a number; or
// with a multiple-choice head: the right one of several texts.
//
// The weights of the encoder and the pooler have the names of a pretrained BERT, from which it is finetuned.
#pragma once

#include "teratron/models/bert/bert.h"
#include "teratron/models/family.h"
#include "teratron/nn/linear.h"

namespace teratron {

/// What a text has.
enum class BertTarget : uint8_t {
  number,   // labels f32 [B, 1]: squared error
  one_of,   // labels i64 [B, 1], a class: cross entropy; samples with a label below 0 do not count
  several,  // labels f32 [B, K], 1 for each label that it has: binary cross entropy
};

struct BertClassifierOptions {
  BertTarget target = BertTarget::one_of;
  int64_t outputs = 2;   // K; 1 for a number
  double dropout = 0.0;  // of the pooled state
  /// Rows of a micro-batch that are the choices of one question, one after the other, each with the number of
  /// the right one as its label; with 1 output each. 1: none.
  int64_t choices = 1;
  std::string loss = "loss";  // its name
};

/// Labels [samples] of one class each, of [rows, 1], of which each sample has as many.
at::Tensor class_labels(const at::Tensor& labels, int64_t samples);

/// The column "labels" of the last stage: a class, or a value of each output.
Column labels_column(const BertClassifierOptions& options);

/// The loss of the samples of a micro-batch, logits [B, K].
LossTerm classification_loss(const at::Tensor& logits_BK, const at::Tensor& labels, BertTarget target);

/// Columns: tokens, types, sequence_index and cu_seqlens as Bert's; labels. The last stage's activations are
/// "logits" [B, K], of questions [B / choices, choices].
class BertClassifier : public Model {
 public:
  BertClassifier(const BertConfig& config, const BertClassifierOptions& options, const StageContext& part);

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override;
  std::vector<InferenceOutput> inference_outputs(const Activations& output) override {
    return {{.name = "logits", .tensor = output["logits"]}};
  }
  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override {
    return {classification_loss(output["logits"], batch["labels"], options_.target)};
  }
  void set_activation_hook(const ActivationHook& hook) override;
  bool never_waits() const override { return typeid(*this) == typeid(BertClassifier); }

 private:
  struct Head {
    ColumnLinear pooler;
    Parameter& weight;
    Parameter& bias;
  };
  at::Tensor logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch);

  BertConfig config_;
  BertClassifierOptions options_;
  TensorParallel parallel_;
  Bert encoder_;
  std::optional<Head> head_;
};

struct BertTextSchemaOptions {
  int64_t sequence_length = 0;
  BertClassifierOptions classifier = {};
};
/// tokens, types, segment_start as in bert_schema(), and labels.
BatchSchema bert_classifier_schema(const BertTextSchemaOptions& options);

/// The plan over batches of this schema; its loss is "loss". Outside training it takes what a BERT takes.
ModelPlan bert_classifier_plan(const BertConfig& config, const BertClassifierOptions& options,
                               const BatchSchema& batch);

}  // namespace teratron
