// BERT with a classification head (Devlin et al. 2018): the class of a text, several labels, or a number; or
// with a multiple-choice head: the right one of several texts.
//
// The weights of the encoder and the pooler have the names of a pretrained BERT, from which it is finetuned.
#pragma once

#include "teratron/models/bert/bert.h"
#include "teratron/models/classifier/classifier.h"
#include "teratron/models/family.h"
#include "teratron/nn/linear.h"

namespace teratron {

/// Columns: tokens, types, sequence_index and cu_seqlens as Bert's; labels.
class BertClassifier : public Classifier {
 public:
  BertClassifier(const BertConfig& config, const ClassifierOptions& options, const StageContext& part);

  bool never_waits() const override { return true; }

 protected:
  at::Tensor logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch) override;

 private:
  struct Head {
    ColumnLinear pooler;
    Parameter& weight;
    Parameter& bias;
  };

  TensorParallel parallel_;
  uint64_t dropout_seed_, dropout_site_;
  std::optional<Head> head_;
};

/// tokens, types, segment_start as in bert_schema(), and labels.
BatchSchema bert_classifier_schema(const ClassifierSchemaOptions& options);

/// The plan over batches of this schema; its loss is "loss". Outside training it takes what a BERT takes.
ModelPlan bert_classifier_plan(const BertConfig& config, const ClassifierOptions& options,
                               const BatchSchema& batch);
/// A classifier of labelled texts, from the weights of a BERT.
Family bert_classifier_family();

}  // namespace teratron
