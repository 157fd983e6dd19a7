// `finetune NAME --task classification | regression`: labelled texts (models/labelled_data), a head on a
// pretrained model.
#pragma once

#include "teratron/train/registry.h"

namespace teratron {

/// The family and the train step of --task.
struct ClassificationJob {
  Family family;
  Registry registry;
};
/// Whether the family has no other head: it is pretrained as a classifier, too.
bool is_classifier(const Family& family);
/// With the classifier on a family's model. UserError(config) for another task, or if it has none.
ClassificationJob classification_job(const Family& base, std::string_view task);

}  // namespace teratron
