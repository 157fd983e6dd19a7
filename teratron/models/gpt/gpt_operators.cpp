#include "teratron/models/gpt/gpt_operators.h"

#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"

namespace teratron {

OperatorsOf gpt_operators(const GPTConfig& config) {
  return [config](const RankBatch& batch, const StageSpec& stage) {
    const RankSizes sizes(hidden_states(config), batch);
    std::vector<Operator> all;
    if (stage.embedding) all.push_back(embedding_operator(sizes));
    if (stage.embedding && config.embedding_norm) {
      const RankSizes narrow({.width = config.hidden}, batch);  // before the residual stream is made fp32
      all.push_back(norm_operator("embedding.word_embeddings_layernorm", config.norm, narrow));
    }
    append(all, stack_operators("decoder", config, batch,
                                {.layers = {stage.first_layer, stage.layers},
                                 .received = !stage.embedding,
                                 .ends = stage.head}));
    if (!stage.head) return all;
    append(all, output_layer_operators({.width = config.hidden,
                                        .columns = config.padded_vocabulary,
                                        .chunks = config.loss_chunks,
                                        .fp8 = config.fp8_output_layer},
                                       sizes));
    return all;
  };
}

}  // namespace teratron
