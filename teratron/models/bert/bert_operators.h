// The operators of a BERT's pipeline stage (models/operators.h).
#pragma once

#include "teratron/data/batch.h"
#include "teratron/models/bert/bert_config.h"
#include "teratron/models/operators.h"

namespace teratron {

/// Over batches of this schema, which says how many tokens are predicted and whether rows are padded.
OperatorsOf bert_operators(const BertConfig& config, const BatchSchema& batch);
/// Of a BertClassifier with so many outputs (bert_classifier.h).
OperatorsOf bert_classifier_operators(const BertConfig& config, int64_t outputs, const BatchSchema& batch);

}  // namespace teratron
