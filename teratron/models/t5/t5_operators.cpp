#include "teratron/models/t5/t5_operators.h"

#include "teratron/models/t5/t5.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"

namespace teratron {

namespace {

void append_relative_biases(std::vector<Operator>& all, const std::string& tower,
                            const TransformerConfig& config, const RankSizes& sizes) {
  if (config.position == PositionEmbedding::relative)
    all.push_back(relative_bias_operator(tower + ".relative_position", config.heads, sizes));
}

// The encoder's output, which all layers of the decoder share, with its gradient.
Operator encoder_output(const RankSizes& source) {
  return {.name = "encoder_output",
          .saved = source.hidden,
          .forward_peak = source.hidden,
          .backward_peak = 2.0 * source.hidden};
}

std::vector<Operator> stage_operators(const T5Config& config, const T5Stage& here, const RankBatch& source,
                                      const RankBatch& target) {
  const RankSizes source_sizes(hidden_states(config.encoder), source);
  const RankSizes target_sizes(hidden_states(config.decoder), target);
  std::vector<Operator> all;
  if (here.embeds_source) all.push_back(embedding_operator(source_sizes));
  if (here.encoder.count > 0) {
    append_relative_biases(all, "encoder", config.encoder, source_sizes);
    append(all, stack_operators("encoder.layers", config.encoder, source,
                                {here.encoder, /*received=*/!here.embeds_source}));
  }
  if (here.ends_encoder)
    all.push_back(norm_operator("encoder.final_layernorm", config.encoder.norm, source_sizes));
  if (here.embeds_target) all.push_back(embedding_operator(target_sizes));
  if (here.decoder.count > 0) {
    append_relative_biases(all, "decoder", config.decoder, target_sizes);
    all.push_back(encoder_output(source_sizes));
    append(all, stack_operators("decoder.layers", config.decoder, target,
                                {here.decoder, /*received=*/!here.embeds_target}));
  }
  if (!here.head) return all;
  all.push_back(norm_operator("decoder.final_layernorm", config.decoder.norm, target_sizes));
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
    return stage_operators(config, T5Stage(config, stage), source, target);
  };
}

}  // namespace teratron
