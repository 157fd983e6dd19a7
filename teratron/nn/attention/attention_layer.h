// Attention layers with their projections, multi-head or grouped-query, tensor-parallel over query groups. A
// group with more ranks than one has its key/value head on all of them, each with some of its query heads.
// Optional: query-key normalization (Henry et al. 2020), ALiBi, relative position biases, sliding window,
// chunks, soft cap of scores, sinks, temperatures by position; other rotations, or none, in some layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/attention_state.h"
#include "teratron/nn/attention/context_parallel/context_parallel.h"
#include "teratron/nn/attention/head_norm.h"
#include "teratron/nn/attention/split_qkv.h"
#include "teratron/nn/mixer.h"

namespace teratron {

/// What takes part in the sum of a softmax besides the scores of the keys, without a value.
enum class SoftmaxType : uint8_t {
  vanilla,     // nothing
  off_by_one,  // 0
  learnable    // a parameter of each head, "core_attention.softmax_offset"
};

/// Which of the context's rotations queries and keys have.
enum class RopeKind : uint8_t { usual, local, none };

/// Queries at position p are multiplied by 1 + scale ln(1 + floor((p + 1) / step)) (Llama 4).
struct AttentionTemperature {
  double scale = 0.0;  // 0: they are not
  int64_t step = 8192;
};

struct AttentionLayerOptions {
  int64_t hidden = 0;
  int64_t heads = 0;         // query heads
  int64_t query_groups = 0;  // key/value heads
  int64_t kv_channels = 0;   // of a head's queries and keys
  int64_t v_channels = 0;    // of its values; 0: as many
  Mask mask = Mask::causal;
  bool bias = true;
  bool qkv_bias = true;
  double dropout = 0.0;
  uint64_t dropout_site = 0;
  Init qkv_init;
  Init output_init;
  std::optional<NormOptions> qk_norm;  // of each head's query and key, before RoPE; self-attention only
  HeadNormKind qk_norm_kind = HeadNormKind::each_head;
  NormWeights qk_norm_weights = NormWeights::all;
  bool output_gate = false;  // each head's output times the sigmoid of its gate; self-attention only
  bool alibi = false;
  bool distance_bias = false;  // the context's
  double scale = 0.0;          // of the scores; 0: 1 / sqrt(kv_channels)
  double softcap = 0.0;        // see AttentionRequest
  SoftmaxType softmax = SoftmaxType::vanilla;
  RopeKind rope = RopeKind::usual;
  int64_t window = 0;  // see AttentionRequest
  int64_t chunk = 0;   // see AttentionRequest
  AttentionTemperature temperature;
  double score_divisor = 1.0;  // see AttentionRequest
  bool recompute_core = false;
  ContextParallelComm context_parallel_comm = ContextParallelComm::p2p;
};

/// Key/value heads on a rank: fewer of them than ranks are on several each.
inline int64_t query_groups_on_rank(int64_t query_groups, int64_t ranks) {
  return std::max<int64_t>(query_groups / ranks, 1);
}

/// softmax(Q K^T) V of this rank's heads as the options say; no parameters but sinks.
class CoreAttention {
 public:
  /// `scope`: of the layer ("...self_attention").
  CoreAttention(const AttentionLayerOptions& options, const Scope& scope, const Group& group);
  /// -> [Sq, B, N * D] for the D of values.
  at::Tensor forward(const QueryKeyValue& qkv, const Segments& segments, const LayerContext& context) const;
  /// forward() over keys and values of all tokens, of whichever context-parallel ranks they are.
  at::Tensor forward_gathered(const QueryKeyValue& qkv, const Segments& segments,
                              const LayerContext& context) const;
  /// forward() for the rows of a generation, whose keys and values are added to the pages.
  at::Tensor forward_paged(const QueryKeyValue& qkv, const KeyValuePages& pages,
                           const LayerContext& context) const;
  /// Attention of queries [T, 1, N, D] over the sources of their rows.
  at::Tensor forward_cross(const at::Tensor& q_SBND, const KeyValuePages& pages,
                           const LayerContext& context) const;
  /// forward_paged() for one new token of each sequence (decodes_all()), before RoPE.
  at::Tensor decode(const QkvParts& qkv, const KeyValuePages& pages, const LayerContext& context) const;
  std::unique_ptr<AttentionState> make_state(LayerState* before = nullptr) const;

  // On this rank.
  int64_t heads() const { return options_.heads / group_.size; }
  int64_t query_groups() const { return query_groups_on_rank(options_.query_groups, group_.size); }
  int64_t kv_channels() const { return options_.kv_channels; }
  double scale() const {
    return options_.scale > 0.0 ? options_.scale : 1.0 / std::sqrt(static_cast<double>(kv_channels()));
  }
  int64_t v_channels() const { return options_.v_channels > 0 ? options_.v_channels : kv_channels(); }

  /// The rotation of queries and keys; null: none.
  const RotaryEmbedding* rope(const LayerContext& context) const;

 private:
  AttentionRequest request(const QueryKeyValue& qkv, const LayerContext& context) const;

  AttentionLayerOptions options_;
  at::TensorOptions tensors_;
  Group group_;
  at::Tensor alibi_slopes_N_;
  at::Tensor zero_sinks_N_;     // of SoftmaxType::off_by_one
  Parameter* sinks_ = nullptr;  // of SoftmaxType::learnable
};

/// Queries, keys and values of the same tokens and width, by one fused projection `linear_qkv`: of each query
/// group its queries, their gates if there are any, a key and a value.
class SelfAttention : public Mixer {
 public:
  SelfAttention(const Scope& scope, const AttentionLayerOptions& options, const TensorParallel& parallel);
  Hidden forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(LayerState* before) const override;

 private:
  struct Projected {
    QueryKeyValue qkv;
    at::Tensor gate_SBF;  // undefined without gates
  };
  Projected project(const at::Tensor& x_SBH, const DropoutArgs& dropout, const LayerContext& context);
  Projected project_gated(const at::Tensor& x_SBH, const DropoutArgs& dropout, const LayerContext& context);
  /// Queries [S, B, ...] times their temperature.
  at::Tensor tempered(const at::Tensor& q, const LayerContext& context) const;
  /// Normed, then rotated.
  void position(QueryKeyValue& qkv, const LayerContext& context);
  at::Tensor decode(const Normed& x_SBH, const KeyValuePages& pages, const LayerContext& context);

  CoreAttention core_;
  AttentionTemperature temperature_;
  bool output_gate_;
  ColumnLinear qkv_;
  RowLinear output_;
  std::unique_ptr<HeadNorm> q_norm_;  // both null without query-key norms
  std::unique_ptr<HeadNorm> k_norm_;
};

/// Queries of x by `linear_q`, keys and values of the context's memory by `linear_kv`, whose rows are a key
/// and a value per query group.
class CrossAttention : public Mixer {
 public:
  CrossAttention(const Scope& scope, const AttentionLayerOptions& options, const TensorParallel& parallel);
  /// In a generation the memory's keys and values are computed when the context has a memory, which is that
  /// of the micro-batch's only row.
  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override;
  std::unique_ptr<LayerState> make_state(LayerState* before) const override;

 private:
  QueryKeyValue project_memory(const Memory& memory);
  at::Tensor attend(const at::Tensor& q_SBND, const LayerContext& context);
  at::Tensor attend_paged(const at::Tensor& q_SBND, const LayerContext& context, const KeyValuePages& pages);

  CoreAttention core_;
  ColumnLinear q_;
  ColumnLinear kv_;
  RowLinear output_;
};

}  // namespace teratron
