// Hugging Face's llava: a vision tower, a projector and a language model, each with a part of config.json.
#pragma once

#include <vector>

#include "teratron/models/hf_map.h"

namespace teratron {

/// For each vision tower and language model.
std::vector<HfFamily> llava_families();

}  // namespace teratron
