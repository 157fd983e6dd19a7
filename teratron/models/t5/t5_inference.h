// What a T5 takes outside training.
#pragma once

#include "teratron/models/inference.h"
#include "teratron/models/t5/t5_config.h"

namespace teratron {

/// encoder_tokens and decoder_tokens, of different lengths; encoder_mask and decoder_mask (optional): 1 for
/// the tokens of each row, then 0 for its padding. The logits of the decoder's padding mean nothing.
Inference t5_inference(const T5Config& config);

}  // namespace teratron
