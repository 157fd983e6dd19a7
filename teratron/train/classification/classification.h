// `finetune bert|gpt --task classification | regression`: labelled texts (models/labelled_data), a head on a
// pretrained model.
#pragma once

#include "teratron/train/registry.h"

namespace teratron {

/// The family and the train step of --task for a model that is named "bert" or "gpt".
struct ClassificationJob {
  Family family;
  Registry registry;
};
/// UserError(config) for a task or a model that is not one of these.
ClassificationJob classification_job(std::string_view model, std::string_view task);

}  // namespace teratron
