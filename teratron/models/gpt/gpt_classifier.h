// GPT with a classification head, as transformers' ForSequenceClassification: the class of a text, or a
// number, from the last token's state.
//
//   logits = h[last] W^T        W [K, H], named classification_head.weight
#pragma once

#include "teratron/models/classifier/classifier.h"
#include "teratron/models/family.h"
#include "teratron/models/gpt/gpt.h"

namespace teratron {

/// Columns: tokens, sequence_index; last_token i64 [B, 1] and labels.
class GPTClassifier : public Classifier {
 public:
  GPTClassifier(const GPTConfig& config, const ClassifierOptions& options, const StageContext& part);

 protected:
  at::Tensor logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch) override;

 private:
  TensorParallel parallel_;
  Parameter* head_ = nullptr;  // of the last stage
};

BatchSchema gpt_classifier_schema(const ClassifierSchemaOptions& options);
/// Its loss is "loss".
ModelPlan gpt_classifier_plan(const GPTConfig& config, const ClassifierOptions& options,
                              const BatchSchema& batch);
/// A classifier of labelled texts, from the weights of a GPT.
Family gpt_classifier_family();

}  // namespace teratron
