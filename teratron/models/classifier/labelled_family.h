// Classifiers that `teratron finetune NAME --task classification | regression` trains on labelled texts.
#pragma once

#include "teratron/models/classifier/classifier.h"
#include "teratron/models/family.h"
#include "teratron/models/labelled_data/labelled_texts.h"

namespace teratron {

/// The classifier's family with the datasets of labelled texts (--train-data, --valid-data) in this form.
/// Adds the checks of their settings.
Family on_labelled_texts(Family classifier, LabelledForm form);

}  // namespace teratron
