#include "teratron/models/gpt/gpt_operators.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/models/transformer/operators.h"

namespace teratron {

namespace {

constexpr double id_bytes = 8.0;

Operator embedding(const GPTConfig& config, const RankSizes& sizes) {
  const bool drops = config.hidden_dropout > 0.0, wide = sizes.residual_stream > sizes.hidden;
  const double whole = sizes.tokens * static_cast<double>(config.hidden) * sizes.element;
  const double ids = sizes.tokens * id_bytes;
  // Ids elsewhere are looked up as row 0 and masked.
  const double masked = sizes.shards > 1.0 ? ids + sizes.tokens : 0.0;
  // Backward sorts ids and rows, and sums in fp32 over chunks of 32 tokens.
  const double sorting = 4.0 * ids + whole / sizes.element * 4.0 / 16.0;
  const double saved = masked + (drops ? sizes.local_tokens * id_bytes : 0.0);
  return {.name = "embedding",
          .kind = Operator::Kind::embedding,
          .bytes = 2.0 * whole,
          .saved = saved,
          .forward_peak = saved + whole + (wide || drops ? 2.0 : 1.0) * sizes.residual_stream,
          .backward_peak = saved + 2.0 * sizes.residual_stream + (wide ? whole : 0.0) + sorting};
}

// The output layer with the loss of a chunk of the tokens.
Operator output_layer(const GPTConfig& config, const RankBatch& batch, const RankSizes& sizes) {
  const auto chunks = static_cast<double>(config.loss_chunks);
  const double width = static_cast<double>(config.hidden),
               columns = static_cast<double>(config.padded_vocabulary) / sizes.shards;
  const bool fp8 = batch.fp8 && config.fp8_output_layer;
  Operator op = gemm_operator("output_layer", sizes, width, columns);
  op.kind = Operator::Kind::loss;
  op.fp8 = fp8;
  const double rows = sizes.tokens / chunks, logits = rows * columns * sizes.element;
  op.flops /= chunks;
  op.bytes = op.bytes / chunks + 2.0 * logits;
  // One kernel replaces the logits by their gradient (kernels/loss/cross_entropy.h); else backward does, from
  // statistics.
  const bool fused = batch.gpu && batch.dtype == Dtype::bf16 && sizes.shards == 1.0 && !fp8;
  op.saved = sizes.column_input(width, fp8) / chunks + logits + (fused ? 0.0 : rows * 2.0 * sizes.statistic);
  const double whole = sizes.tokens * width * sizes.element;  // gradients of all chunks
  const double gathered = sizes.gathers ? whole / chunks : 0.0;
  op.forward_peak = op.saved + sizes.gemm_workspace + gathered;
  op.backward_peak = op.forward_peak + (fp8 ? std::max(whole, 2.0 * rows * columns) : whole);
  return op;
}

}  // namespace

OperatorsOf gpt_operators(const GPTConfig& config) {
  return [config](const RankBatch& batch) {
    const RankSizes sizes(config, batch);
    const StageSpec& stage = batch.stage;
    std::vector<Operator> all;
    if (stage.embedding) all.push_back(embedding(config, sizes));
    for (Operator& op : stack_operators("decoder.layers", config, batch, stage.first_layer, stage.layers)) {
      all.push_back(std::move(op));
    }
    if (!stage.head) return all;
    all.push_back(norm_operator("decoder.final_layernorm", config, sizes));
    Operator loss = output_layer(config, batch, sizes);
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
