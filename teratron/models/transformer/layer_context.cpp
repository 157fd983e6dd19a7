#include "teratron/models/transformer/layer_context.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/common/state_rows.h"
#include "teratron/nn/attention/rope.h"

namespace teratron {

namespace {

// The ids that the tokens have in rows with padding.
SequenceRows rows_of_run(const PackedRows& packed, const at::Tensor& sample_ids_B) {
  const int64_t samples = packed.starts_B.size(0);
  const at::Tensor sample_T = sample_ids_B.index_select(0, packed.tokens_T.remainder(samples));
  const at::Tensor rows_T = sample_T * packed.length + at::floor_divide(packed.tokens_T, samples);
  return {.rows_S = rows_T, .total = packed.length, .of_run = true};
}

struct Rotations {
  at::Tensor positions_SB, rows_SB;  // see LayerContext
};

// A generation has the rows of each text's length in the place of positions (generate/engine.h); in other
// batches all texts are as long as the rows.
Rotations rotations_of(const at::Tensor& given_SB, const MicroBatch& batch, const RotaryEmbedding* rope) {
  if (!rope || !rope->rows_by_length()) return {given_SB, given_SB};
  if (batch.generation) return {rope->positions(given_SB), given_SB};
  const PackedRows packed = packed_rows(batch);
  const int64_t length = packed.defined() ? packed.length : given_SB.size(0) * batch.context_parallel.size();
  return {given_SB, rope->rows(given_SB, length)};
}

}  // namespace

LayerContext layer_context(const MicroBatch& batch, const TransformerConfig& config,
                           const RotaryEmbedding* rope) {
  const bool draws = batch.training && (config.hidden_dropout > 0.0 || config.attention_dropout > 0.0 ||
                                        config.adapter_dropout > 0.0 || config.experts.random());
  const at::Tensor& index_SB = batch["sequence_index"];
  const at::Tensor& ids_SB = batch["position_ids"];
  const PackedRows packed = packed_rows(batch);
  const ContextParallel& context = batch.context_parallel;
  SequenceRows rows;
  if (draws) {
    TERATRON_ASSERT(index_SB.defined() && batch.sample_ids_B.defined(),
                    "dropout needs column sequence_index and sample ids");
    const bool differs = context.cut && !context.cut->whole_samples;
    rows = packed.defined()
               ? rows_of_run(packed, batch.sample_ids_B)
               : SequenceRows{differs ? index_SB : index_SB.select(1, 0), index_SB.size(0) * context.size()};
  }
  const Rotations rotations = rotations_of(ids_SB.defined() ? ids_SB : index_SB, batch, rope);
  return {.rope = rope,
          .positions_SB = rotations.positions_SB,
          .rope_rows_SB = rotations.rows_SB,
          .segments = {batch["cu_seqlens"]},
          .packed = packed,
          .context_parallel = context,
          .generation = batch.generation,
          .state_rows = batch.generation ? std::make_shared<StateRows>() : nullptr,
          .rows = rows,
          .dropout_seed = config.dropout_seed,
          .sample_ids_B = batch.sample_ids_B,
          .dropout_row_ids = std::make_shared<DropoutRowIds>(),
          .training = batch.training,
          .auxiliary = batch.auxiliary};
}

}  // namespace teratron
