// Classifiers in Hugging Face's format: the ForSequenceClassification of each of its models.
#pragma once

#include "teratron/models/hf_map.h"

namespace teratron {

/// The classifier on a model, of the family "<family>_classifier". `head` is the row of its head, whose
/// rows are the classes.
HfFamily classifier_of(HfFamily model, const HfTensorRow& head);

}  // namespace teratron
