// A layer of a model: it takes hidden states [S, B, H] and returns the next ones.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "teratron/nn/dropout.h"
#include "teratron/nn/layer_state.h"
#include "teratron/nn/linear.h"
#include "teratron/nn/tokens/context_cut.h"
#include "teratron/nn/tokens/generation_batch.h"
#include "teratron/nn/tokens/packed_rows.h"

namespace teratron {

class RotaryEmbedding;  // attention/rope.h
struct StateRows;       // states/slot_state.h

/// What cross attention attends to.
struct Memory {
  at::Tensor hidden_SBH;  // output of the encoder, S local under sequence parallelism; undefined: none
  Segments segments;      // of the decoder's queries and the encoder's keys
  std::optional<DropoutArgs> dropout = {};  // where adapters drop its elements; nullopt: they do not
  ContextParallel context_parallel = {};    // of its tokens, of which this rank has some; segments are of all
};

/// What layers with auxiliary losses need of a training step (nn/moe).
struct AuxiliaryLosses {
  /// f64 []: factor of a micro-batch's mean loss in backward, or with `per_token` of its sum over the tokens.
  /// Undefined: there is no backward.
  at::Tensor scale;
  bool per_token = false;
  /// f64, with `per_token`: ModelPlan::loss_counts of the step's micro-batches on all replicas. Undefined:
  /// the model has none.
  at::Tensor loss_counts = {};
  /// f64, ModelPlan::layer_sums: layers add what they measure in training. Undefined: it is not asked for.
  at::Tensor sums;
};

/// Inputs of all layers for one micro-batch. S here counts the tokens that attention sees, which under
/// sequence parallelism are those of all ranks of the group. All that depends on them is a tensor.
struct LayerContext {
  const RotaryEmbedding* rope = nullptr;        // null: no RoPE
  const RotaryEmbedding* local_rope = nullptr;  // of layers that rotate otherwise (RopeKind)
  at::Tensor positions_SB;
  at::Tensor rope_rows_SB;  // rows of tables of RoPE: the positions, unless there are tables by length
  Segments segments;        // see AttentionRequest
  PackedRows packed;        // see AttentionRequest
  ContextParallel context_parallel;  // S counts the tokens of this rank; segments are in the cut
  std::shared_ptr<const GenerationBatch> generation = nullptr;  // null: the layers have no states
  /// Shared by all layers for this micro-batch, computed by slot_rows(). Null: each layer computes them.
  std::shared_ptr<StateRows> state_rows = nullptr;
  Memory memory;
  /// [N, 2 L - 1] biases of self-attention for the distances -(L - 1), ..., L - 1, L at least the number of
  /// keys (attention/relative_position.h); undefined: none.
  at::Tensor distance_bias;
  SequenceRows rows;  // undefined without dropout
  uint64_t dropout_seed = 0;
  at::Tensor sample_ids_B;                                   // see DropoutKey
  std::shared_ptr<DropoutRowIds> dropout_row_ids = nullptr;  // shared by all layers for this micro-batch
  bool training = true;                                      // dropout is active
  AuxiliaryLosses auxiliary;
  /// Called with what parts of a layer compute and their names, to find where numbers stop being finite;
  /// null: it is not asked for.
  std::function<void(const std::string& part, const at::Tensor& output)> notify = nullptr;

  /// Dropout of hidden states, which are sequence shards under sequence parallelism.
  DropoutArgs hidden_dropout(double rate, uint64_t site, const TensorParallel& parallel) const {
    return {.rate = training ? rate : 0.0,
            .key = {dropout_seed, site, sample_ids_B},
            .rows = {parallel.sequence_shard(rows.rows_S), rows.total, rows.of_run, rows.rows_S},
            .row_ids = dropout_row_ids,
            .training = training};
  }
};

class Layer {
 public:
  virtual ~Layer() = default;
  /// x [S, B, H] -> [S, B, H]. `state`: of make_state(), in a generation; null in training. A layer of plain
  /// tensor operations begins with apply_bias_grad(x) and returns {y}; Hidden::bias only saves a pass over
  /// memory.
  virtual Hidden forward(const Hidden& x, const LayerContext& context, LayerState* state) = 0;
  /// What the layer keeps of the sequences of a generation; null: nothing.
  virtual std::unique_ptr<LayerState> make_state() const { return nullptr; }
};

}  // namespace teratron
