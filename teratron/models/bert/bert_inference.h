// What a BERT takes outside training: tokens, types and padding_mask (1: a token, 0: padding).
#pragma once

#include "teratron/models/bert/bert_config.h"
#include "teratron/models/inference.h"

namespace teratron {

Inference bert_inference(const BertConfig& config);

}  // namespace teratron
