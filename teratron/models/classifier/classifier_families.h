// The families of classifiers: what `teratron finetune --task` and `teratron tasks` train on top of a GPT or
// a BERT, and what their checkpoints hold. They are not models of `teratron pretrain`.
#pragma once

#include "teratron/models/classifier/classifier.h"
#include "teratron/models/family.h"

namespace teratron {

/// The head of --task: regression, classification (--num-classes), or one of `teratron tasks`.
ClassifierOptions classifier_options(const Arguments& args);

/// Name, summary and plan; who trains them adds the datasets.
Family bert_classifier_family();
Family gpt_classifier_family();

/// The family of a checkpoint's model: also a classifier's. UserError(config) if there is none of this name.
const Family& find_saved_family(std::string_view name);

}  // namespace teratron
