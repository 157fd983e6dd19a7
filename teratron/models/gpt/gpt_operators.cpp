#include "teratron/models/gpt/gpt_operators.h"

#include <fmt/format.h>

#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"

namespace teratron {

namespace {

std::vector<Operator> head_operators(const GPTConfig& config, const RankSizes& sizes) {
  return output_layer_operators({.width = config.hidden,
                                 .columns = config.padded_vocabulary,
                                 .chunks = config.loss_chunks,
                                 .fp8 = config.fp8_output_layer},
                                sizes);
}

// W [H, 2 H] of the embedding and the hidden state, whole on every rank, for the tokens of this one.
Operator joining_operator(const std::string& name, const RankSizes& sizes) {
  const double tokens = sizes.local_tokens, width = as_real(sizes.states.width);
  const double y = tokens * width * sizes.element;
  Operator op{.name = name, .kind = Operator::Kind::gemm};
  op.flops = 2.0 * tokens * 2.0 * width * width;
  op.bytes = 3.0 * y + 2.0 * width * width * sizes.element;
  op.saved = 2.0 * y;
  op.forward_peak = op.saved + sizes.gemm_workspace + y;
  op.backward_peak = op.saved + sizes.gemm_workspace + 3.0 * y;
  return op;
}

// Layers that predict further tokens, each with the output layer.
std::vector<Operator> mtp_operators(const GPTConfig& config, const RankBatch& batch) {
  const RankSizes sizes(hidden_states(config), batch);
  std::vector<Operator> all;
  for (int64_t i = 0; i < config.mtp_layers; ++i) {
    const std::string name = fmt::format("mtp.layers.{}", i);
    all.push_back(embedding_operator(sizes));
    all.back().name = name + ".embedding";
    for (const char* const norm : {".enorm", ".hnorm"})
      all.push_back(norm_operator(name + norm, config.norm, sizes));
    all.push_back(joining_operator(name + ".eh_proj", sizes));
    append(all,
           layer_operators(name + ".mtp_model_layer", config, batch, branches_of(config, config.layers + i)));
    all.push_back(norm_operator(name + ".final_layernorm", config.norm, sizes));
    for (Operator& op : head_operators(config, sizes)) {
      op.name = name + "." + op.name;
      all.push_back(std::move(op));
    }
  }
  return all;
}

}  // namespace

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
    append(all, mtp_operators(config, batch));
    append(all, head_operators(config, sizes));
    return all;
  };
}

}  // namespace teratron
