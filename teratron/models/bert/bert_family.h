// BERT: encoders of sentence pairs, trained on masked tokens.
#pragma once

#include "teratron/models/bert/bert_config.h"
#include "teratron/models/bert/data/bert_builder.h"
#include "teratron/models/family.h"

namespace teratron {

Family bert_family();
/// Trained on masked words of texts (models/bert/data/bert_texts.h); the binary head stays as it is.
Family bert_family_on_texts();

/// The plan of a BERT over batches of this schema (bert_schema()).
ModelPlan bert_plan(const BertConfig& config, const BatchSchema& batch);
/// What the data flags select.
BertDataOptions bert_data_options(const DataRequest& request);

}  // namespace teratron
