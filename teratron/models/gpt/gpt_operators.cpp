#include "teratron/models/gpt/gpt_operators.h"

#include <fmt/format.h>

#include "teratron/models/transformer/operators.h"

namespace teratron {

OperatorsOf gpt_operators(const GPTConfig& config) {
  return [config](const RankBatch& batch) {
    const RankSizes sizes(config, batch);
    const StageSpec& stage = batch.stage;
    std::vector<Operator> all;
    if (stage.embedding) all.push_back(embedding_operator(config, sizes));
    if (stage.embedding && config.embedding_norm) {
      TransformerConfig narrow = config;  // before the residual stream is made fp32
      narrow.fp32_residual = false;
      all.push_back(norm_operator("embedding.word_embeddings_layernorm", narrow, RankSizes(narrow, batch)));
    }
    for (Operator& op : stack_operators("decoder.layers", config, batch, stage.first_layer, stage.layers)) {
      all.push_back(std::move(op));
    }
    if (!stage.head) return all;
    all.push_back(norm_operator("decoder.final_layernorm", config, sizes));
    Operator loss = output_layer_operator(batch, sizes,
                                          {.width = static_cast<double>(config.hidden),
                                           .columns = static_cast<double>(config.padded_vocabulary),
                                           .chunks = static_cast<double>(config.loss_chunks),
                                           .fp8 = config.fp8_output_layer});
    if (config.loss_chunks == 1) {
      all.push_back(std::move(loss));
      return all;
    }
    // A chunk keeps its part of the hidden states and computes its logits again in backward.
    const double input = sizes.hidden / static_cast<double>(config.loss_chunks);
    for (double* bytes : {&loss.saved, &loss.forward_peak, &loss.backward_peak}) *bytes -= input;
    for (int64_t chunk = 0; chunk < config.loss_chunks; ++chunk) {
      all.push_back({.name = fmt::format("output_layer.input.{}", chunk), .saved = input});
      loss.recompute_unit = config.layers + chunk;
      all.push_back(loss);
    }
    return all;
  };
}

}  // namespace teratron
