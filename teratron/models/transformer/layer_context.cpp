#include "teratron/models/transformer/layer_context.h"

#include "teratron/base/error.h"

namespace teratron {

LayerContext layer_context(const MicroBatch& batch, const TransformerConfig& config,
                           const RotaryEmbedding* rope) {
  const bool dropout = batch.training && (config.hidden_dropout > 0.0 || config.attention_dropout > 0.0);
  const at::Tensor& index_SB = batch["sequence_index"];
  const at::Tensor& ids_SB = batch["position_ids"];
  SequenceRows rows;
  if (dropout) {
    TERATRON_ASSERT(index_SB.defined() && batch.sample_ids_B.defined(),
                    "dropout needs column sequence_index and sample ids");
    rows = {index_SB.select(1, 0), index_SB.size(0) * batch.context_parallel_size};
  }
  return {.rope = rope,
          .positions_SB = ids_SB.defined() ? ids_SB : index_SB,
          .segments = {batch["cu_seqlens"]},
          .rows = rows,
          .dropout_seed = config.dropout_seed,
          .sample_ids_B = batch.sample_ids_B,
          .dropout_row_ids = std::make_shared<DropoutRowIds>(),
          .training = batch.training};
}

}  // namespace teratron
