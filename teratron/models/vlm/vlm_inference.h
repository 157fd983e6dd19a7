// What `teratron logits` gives a model that reads images: tokens, in which each row of an image is one
// image token, and pixel values.
#pragma once

#include "teratron/models/inference.h"
#include "teratron/models/vlm/vlm_config.h"

namespace teratron {

Inference vlm_inference(const VlmConfig& config);

}  // namespace teratron
