#include "teratron/models/bert/bert_operators.h"

#include <functional>

#include "teratron/models/transformer/operators.h"

namespace teratron {

namespace {

constexpr double id_size = 8.0;

// Of the LM head, which sees the predictions alone, on every tensor-parallel rank.
RankSizes head_sizes(const BertConfig& config, RankSizes sizes, double rows) {
  sizes.tokens = sizes.local_tokens = rows;
  sizes.gathers = false;
  sizes.residual_stream = sizes.hidden = rows * static_cast<double>(config.hidden) * sizes.element;
  return sizes;
}

// Hidden states of some positions, which the head's first layer saves.
Operator select(const RankSizes& sizes, const char* name, double rows, double bytes) {
  const double saved = rows * id_size;
  return {.name = name,
          .bytes = 2.0 * bytes,
          .saved = saved,
          .forward_peak = saved + bytes,
          .backward_peak = saved + bytes + sizes.hidden};
}

// Of the first positions, with the classifier of its outputs.
Operator pooler_operator(const BertConfig& config, const RankSizes& sizes, double outputs) {
  const auto width = static_cast<double>(config.hidden);
  Operator pooler =
      gemm_operator("pooler.dense", head_sizes(config, sizes, sizes.samples), width, width + outputs);
  pooler.saved = 2.0 * sizes.samples * width * sizes.element;
  pooler.forward_peak = pooler.backward_peak = pooler.saved;
  return pooler;
}

void add_heads(std::vector<Operator>& all, const BertConfig& config, const RankBatch& batch,
               double predictions) {
  const RankSizes sizes(config, batch);
  const auto width = static_cast<double>(config.hidden);
  const RankSizes head = head_sizes(config, sizes, predictions * sizes.samples);
  const double selected = head.tokens + (config.binary_head ? sizes.samples : 0.0);
  const double input = selected * width * sizes.element, x = head.hidden;
  all.push_back(select(sizes, "lm_head.select", selected, input));
  Operator dense = gemm_operator("lm_head.dense", head, width, width);
  dense.saved = input + x;  // its output for the GELU
  dense.forward_peak = dense.saved + x + head.gemm_workspace;
  dense.backward_peak = dense.saved + 2.0 * x + head.gemm_workspace;
  all.push_back(dense);
  all.push_back(norm_operator("lm_head.layer_norm", config, head));
  Operator loss = output_layer_operator(
      batch, head, {.width = width, .columns = static_cast<double>(config.padded_vocabulary)});
  const double targets = head.tokens * id_size;
  for (double* bytes : {&loss.saved, &loss.forward_peak, &loss.backward_peak}) *bytes += targets;
  all.push_back(loss);
  if (config.binary_head) all.push_back(pooler_operator(config, sizes, 2.0));
}

using AddHead = std::function<void(std::vector<Operator>&, const RankBatch&)>;

// The encoder, and on the last stage the head.
OperatorsOf with_head(const BertConfig& config, const BatchSchema& schema, const AddHead& add_head) {
  const bool padded = find_column(schema, "segment_start") != nullptr;
  return [config, padded, add_head](const RankBatch& given) {
    RankBatch batch = given;
    batch.segmented = padded;
    const RankSizes sizes(config, batch);
    const StageSpec& stage = batch.stage;
    std::vector<Operator> all;
    if (stage.embedding) all.push_back(embedding_operator(config, sizes));
    for (Operator& op : stack_operators("encoder.layers", config, batch, stage.first_layer, stage.layers))
      all.push_back(std::move(op));
    if (!stage.head) return all;
    all.push_back(norm_operator("encoder.final_layernorm", config, sizes));
    add_head(all, batch);
    return all;
  };
}

}  // namespace

OperatorsOf bert_operators(const BertConfig& config, const BatchSchema& schema) {
  const Column* const positions = find_column(schema, "masked_positions");
  const double predictions = positions ? static_cast<double>(positions->numel()) : 0.0;
  return with_head(config, schema, [=](std::vector<Operator>& all, const RankBatch& batch) {
    add_heads(all, config, batch, predictions);
  });
}

OperatorsOf bert_classifier_operators(const BertConfig& config, int64_t outputs, const BatchSchema& schema) {
  return with_head(config, schema, [=](std::vector<Operator>& all, const RankBatch& batch) {
    const RankSizes sizes(config, batch);
    const double bytes = sizes.samples * static_cast<double>(config.hidden) * sizes.element;
    all.push_back(select(sizes, "pooler.select", sizes.samples, bytes));
    all.push_back(pooler_operator(config, sizes, static_cast<double>(outputs)));
  });
}

}  // namespace teratron
