// The parts of an encoder and a decoder on a pipeline stage.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

/// The encoder's layers come first, then the decoder's. A tower's embedding is on the stage where it begins,
/// its final norm where it ends: a stage may hold parts of both, of one, or none.
struct EncoderDecoderStage {
  EncoderDecoderStage(const TransformerConfig& encoder, const TransformerConfig& decoder,
                      const StageSpec& stage);
  LayerRange encoder, decoder;
  bool embeds_source = false, ends_encoder = false, embeds_target = false, head = false;
};

}  // namespace teratron
