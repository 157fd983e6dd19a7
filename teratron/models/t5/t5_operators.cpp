#include "teratron/models/t5/t5_operators.h"

#include "teratron/models/transformer/encoder_decoder_stage.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"

namespace teratron {

namespace {

void append_relative_biases(std::vector<Operator>& all, const std::string& tower,
                            const TransformerConfig& config, const RankSizes& sizes) {
  if (config.position == PositionEmbedding::relative)
    all.push_back(relative_bias_operator(tower + ".relative_position", config.heads, sizes));
}

std::vector<Operator> stage_operators(const T5Config& config, const EncoderDecoderStage& here,
                                      const RankBatch& source, const RankBatch& target) {
  const RankSizes source_sizes(hidden_states(config.encoder), source);
  const RankSizes target_sizes(hidden_states(config.decoder), target);
  std::vector<Operator> all;
  if (here.embeds_source) all.push_back(embedding_operator(source_sizes));
  if (here.encoder.count > 0) append_relative_biases(all, "encoder", config.encoder, source_sizes);
  append(all, stack_operators(
                  "encoder", config.encoder, source,
                  {.layers = here.encoder, .received = !here.embeds_source, .ends = here.ends_encoder}));
  if (here.embeds_target) all.push_back(embedding_operator(target_sizes));
  if (here.decoder.count > 0) append_relative_biases(all, "decoder", config.decoder, target_sizes);
  append(all, stack_operators("decoder", config.decoder, target,
                              {.layers = here.decoder, .received = !here.embeds_target, .ends = here.head}));
  if (!here.head) return all;
  append(all, output_layer_operators({.width = config.decoder.hidden, .columns = config.padded_vocabulary},
                                     target_sizes));
  return all;
}

}  // namespace

OperatorsOf t5_operators(const T5Config& config, const BatchSchema& schema) {
  const Column* const column = find_column(schema, "decoder_tokens");
  const int64_t length = column ? column->numel() : 0;
  const bool padded = find_column(schema, "encoder_length") != nullptr;
  return [config, length, padded](const RankBatch& batch, const StageSpec& stage) {
    RankBatch source = batch, target = batch;
    source.segmented = padded;
    target.batch = {.samples = batch.batch.samples, .sequence_length = length};
    target.memory = batch.batch;
    target.segmented = false;
    return stage_operators(config, EncoderDecoderStage(config.encoder, config.decoder, stage), source,
                           target);
  };
}

}  // namespace teratron
