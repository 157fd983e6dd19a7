// Classifiers in Hugging Face's format: the ForSequenceClassification of each of its models.
#pragma once

#include <vector>

#include "teratron/models/hf_map.h"

namespace teratron {

/// Of the models of a family, as the family "<family>_classifier".
std::vector<HfFamily> classifiers_of(const std::vector<HfFamily>& models);

}  // namespace teratron
