// Costs of a BERT's pipeline stage.
#pragma once

#include "teratron/models/bert/bert_config.h"
#include "teratron/models/model_plan.h"

namespace teratron {

/// Over batches of this schema, which says how many tokens are predicted and whether rows are padded.
OperatorsOf bert_operators(const BertConfig& config, const BatchSchema& batch);
/// A BertClassifier with so many outputs (bert_classifier.h).
OperatorsOf bert_classifier_operators(const BertConfig& config, int64_t outputs, const BatchSchema& batch);

}  // namespace teratron
