#include "teratron/models/bert/bert_operators.h"

#include <functional>

#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/norm_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"

namespace teratron {

namespace {

// The LM head sees the predictions alone, on every tensor-parallel rank.
RankSizes head_sizes(RankSizes sizes, double rows) {
  sizes.tokens = sizes.local_tokens = rows;
  sizes.gathers = false;
  sizes.residual_stream = sizes.hidden = sizes.whole_hidden();
  return sizes;
}

// Hidden states of some positions, which the head's first layer saves.
Operator select(const RankSizes& sizes, const char* name, double rows, double bytes) {
  const double saved = rows * id_bytes;
  return {.name = name,
          .bytes = 2.0 * bytes,
          .saved = saved,
          .forward_peak = saved + bytes,
          .backward_peak = saved + bytes + sizes.hidden};
}

// The pooler of the first positions, with the classifier of its outputs.
Operator pooler_operator(const RankSizes& sizes, int64_t outputs) {
  const double width = as_real(sizes.states.width);
  Operator pooler =
      gemm_operator("pooler.dense", head_sizes(sizes, sizes.samples), width, width + as_real(outputs));
  pooler.add_saved(2.0 * sizes.samples * width * sizes.element);
  return pooler;
}

std::vector<Operator> head_operators(const BertConfig& config, const RankSizes& sizes, double predictions) {
  const double width = as_real(config.hidden);
  const RankSizes head = head_sizes(sizes, predictions * sizes.samples);
  const double selected = head.tokens + (config.binary_head ? sizes.samples : 0.0);
  const double input = selected * width * sizes.element, x = head.hidden;
  std::vector<Operator> all = {select(sizes, "lm_head.select", selected, input)};
  Operator dense = gemm_operator("lm_head.dense", head, width, width);
  dense.saved = input + x;  // its output for the GELU
  dense.forward_peak = dense.saved + x + head.gemm_workspace;
  dense.backward_peak = dense.saved + 2.0 * x + head.gemm_workspace;
  all.push_back(dense);
  all.push_back(norm_operator("lm_head.layer_norm", config.norm, head));
  append(all, output_layer_operators({.width = config.hidden, .columns = config.padded_vocabulary}, head));
  all.back().add_saved(head.tokens * id_bytes);  // targets
  if (config.binary_head) all.push_back(pooler_operator(sizes, 2));
  return all;
}

using HeadOperators = std::function<std::vector<Operator>(const RankSizes& sizes)>;

// The encoder, and on the last stage the head.
OperatorsOf with_head(const BertConfig& config, const BatchSchema& schema, const HeadOperators& head) {
  const bool padded = find_column(schema, "segment_start") != nullptr;
  return [config, padded, head](const RankBatch& given, const StageSpec& stage) {
    RankBatch batch = given;
    batch.segmented = padded;
    const RankSizes sizes(hidden_states(config), batch);
    std::vector<Operator> all;
    if (stage.embedding) all.push_back(embedding_operator(sizes));
    append(all, stack_operators("encoder", config, batch,
                                {.layers = {stage.first_layer, stage.layers},
                                 .received = !stage.embedding,
                                 .ends = stage.head}));
    if (stage.head) append(all, head(sizes));
    return all;
  };
}

}  // namespace

OperatorsOf bert_operators(const BertConfig& config, const BatchSchema& schema) {
  const Column* const positions = find_column(schema, "masked_positions");
  const double predictions = positions ? as_real(positions->numel()) : 0.0;
  return with_head(config, schema, [config, predictions](const RankSizes& sizes) {
    return head_operators(config, sizes, predictions);
  });
}

OperatorsOf bert_classifier_operators(const BertConfig& config, int64_t outputs, const BatchSchema& schema) {
  return with_head(config, schema, [outputs](const RankSizes& sizes) {
    const double bytes = sizes.samples * as_real(sizes.states.width) * sizes.element;
    return std::vector<Operator>{select(sizes, "pooler.select", sizes.samples, bytes),
                                 pooler_operator(sizes, outputs)};
  });
}

}  // namespace teratron
