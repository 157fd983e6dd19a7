#include "teratron/models/transformer/encoder_decoder_stage.h"

#include "teratron/models/model_plan.h"

namespace teratron {

EncoderDecoderStage::EncoderDecoderStage(const TransformerConfig& encoder_config,
                                         const TransformerConfig& decoder_config, const StageSpec& stage)
    : embeds_source(stage.embedding), head(stage.head) {
  const std::vector<Tower> towers = {{"encoder", encoder_config.layers}, {"decoder", decoder_config.layers}};
  encoder = layers_of_tower(towers, 0, stage);
  decoder = layers_of_tower(towers, 1, stage);
  ends_encoder = encoder.count > 0 && encoder.first + encoder.count == encoder_config.layers;
  embeds_target = decoder.count > 0 && decoder.first == 0;
}

}  // namespace teratron
