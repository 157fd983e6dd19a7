#include <algorithm>

#include "teratron/comm/nccl/symmetric_pool.h"
#include "teratron/nn/attention/attention_cost.h"
#include "teratron/nn/attention/split_qkv.h"
#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

class SelfAttentionCost {
 public:
  SelfAttentionCost(const std::string& name, const AttentionLayerOptions& options, const RankSizes& sizes)
      : name_(name),
        options_(options),
        sizes_(sizes),
        batch_(sizes.batch),
        shape_(attention_shape(options, batch_, batch_.batch.sequence_length)),
        backend_(choose_backend(shape_)),
        heads_(as_real(options.heads) / sizes.shards),
        groups_(std::max(as_real(options.query_groups) / sizes.shards, 1.0)),
        q_(sizes.tokens * heads_ * as_real(options.kv_channels) * sizes.element),
        kv_(sizes.tokens * groups_ * as_real(options.kv_channels) * sizes.element) {}

  std::vector<Operator> all() const {
    if (options_.output_gate) return {projection(), split(), core(), gate(), output()};
    return {projection(), split(), core(), output()};
  }

 private:
  // What backends keep besides queries, keys, values and the output as they are: keys and values repeated for
  // every query head of their group, and scores.
  bool repeats_groups() const {
    return groups_ < heads_ && (backend_ == AttentionBackend::flash_cpu || stores_scores());
  }
  bool stores_scores() const { return backend_ == AttentionBackend::math; }
  // Copies with contiguous samples; the output layer reads another copy.
  bool copies() const { return backend_ == AttentionBackend::flash_varlen && batch_.batch.samples > 1; }
  bool recomputes() const { return options_.recompute_core && stores_scores(); }
  // Whether queries, keys and values are views of their projection.
  bool is_view() const {
    return queries_are_view(static_cast<int64_t>(groups_), static_cast<int64_t>(heads_ / groups_));
  }
  double qkv() const { return q_ + 2.0 * kv_; }
  double repeated() const { return repeats_groups() ? 2.0 * q_ : 0.0; }
  double scores() const { return sizes_.samples * heads_ * sizes_.queries * sizes_.keys * sizes_.element; }

  Operator projection() const {
    const double of_query = options_.output_gate ? 2.0 : 1.0;
    const double width = (of_query * heads_ + 2.0 * groups_) * as_real(options_.kv_channels);
    Operator op = column_operator(name_ + ".linear_qkv", sizes_, width, batch_.fp8);
    op.backward_peak -= qkv();  // split_qkv() writes the gradients of its parts into one: no copy joins them
    return op;
  }

  // RoPE, query-key norms and the queries, keys and values that attention keeps.
  Operator split() const {
    Operator op{.name = name_ + ".qkv", .kind = Operator::Kind::pointwise};
    const double rotated = q_ + kv_;
    const bool tempers = options_.temperature.scale != 0.0, has_views = is_view() && !tempers;
    double inputs = qkv() + (has_views ? 0.0 : q_);  // of attention
    if (options_.qk_norm) {
      const double rows =
          sizes_.tokens * (options_.qk_norm_kind == HeadNormKind::all_heads ? 2.0 : heads_ + groups_);
      const double statistics = options_.qk_norm->kind == NormKind::rms ? 1.0 : 2.0;
      op.saved = rotated + rows * sizes_.statistic * statistics;
      inputs = qkv() + rotated;
      op.bytes += 3.0 * rotated;
      if (options_.qk_norm_kind == HeadNormKind::own_weight) op.saved += rotated;  // before the weights
    }
    // Copies for every head take the place of keys and values; queries that are a view keep the projection.
    if (repeats_groups() && !recomputes())
      inputs = (options_.qk_norm || !has_views ? q_ : qkv()) + repeated();
    if (copies()) inputs = qkv();
    op.saved += inputs;
    if (!has_views) op.bytes += 2.0 * q_;
    op.forward_peak = op.saved + qkv() + (tempers ? q_ / sizes_.element * 4.0 : 0.0);
    op.backward_peak = op.saved - inputs + sizes_.residual_stream + 2.0 * qkv();
    return op;
  }

  Operator core() const {
    Operator op{.name = name_ + ".core_attention", .kind = Operator::Kind::attention};
    const double squares = batch_.batch.squared_lengths.value_or(sizes_.samples * sizes_.keys * sizes_.keys) /
                           as_real(batch_.context_parallel);
    op.flops = 4.0 * heads_ * as_real(options_.kv_channels) * squares;
    op.masked_flops = shape_.causal ? op.flops / 2.0 : 0.0;
    op.bytes = qkv() + q_;
    if (stores_scores()) {
      add_scores(op);
      return op;
    }
    const double logsumexp = sizes_.tokens * heads_ * sizes_.statistic;
    op.saved = q_ + logsumexp;
    op.forward_peak = op.saved + q_;
    // Libraries' fused backwards sum the gradient of queries in fp32.
    const double sums = shape_.has_plain_scores() ? q_ / sizes_.element * 4.0 : 0.0;
    op.backward_peak = op.saved + gradients() + sums + 2.0 * logsumexp;
    if (batch_.context_parallel > 1) add_context_parallel(op);
    return op;
  }

  // Saves the output of attention and, in fp32, the gates' sigmoids; the split has joined the rest anew.
  Operator gate() const {
    Operator op{.name = name_ + ".output_gate", .kind = Operator::Kind::pointwise};
    const double wide = q_ / sizes_.element * 4.0;
    op.bytes = 3.0 * q_ + qkv();
    op.saved = q_ + wide;
    op.forward_peak = op.saved + wide + q_;
    op.backward_peak = op.saved + 2.0 * wide + 2.0 * q_;
    return op;
  }

  double gradients() const { return sizes_.residual_stream + q_ + qkv() + repeated(); }

  void add_scores(Operator& op) const {
    if (recomputes()) op.recompute_unit = 0;
    const bool masks = shape_.segments || options_.window > 0;
    op.bytes += 4.0 * scores();
    op.saved = (options_.dropout > 0.0 ? 2.0 * scores() : scores()) + (recomputes() ? repeated() : 0.0);
    op.forward_peak = op.saved + scores() + (masks ? scores() / sizes_.element / heads_ : 0.0) + 2.0 * q_;
    op.backward_peak = 3.0 * scores() + gradients() + (recomputes() ? q_ : 0.0);
  }

  // What context parallelism holds besides: a block of keys and values to send and windows for those that
  // arrive, or all keys and values; queries and outputs of blocks, or of a part of the heads.
  void add_context_parallel(Operator& op) const {
    const double ranks = as_real(batch_.context_parallel);
    const bool adds_two = ranks == 2.0 && !batch_.segmented;
    const double wide = adds_two ? 0.0 : qkv() / sizes_.element * 4.0;  // sums of gradients
    if (options_.context_parallel_comm == ContextParallelComm::a2a) {
      op.forward_peak += qkv() + q_;
      op.backward_peak += qkv() + q_;
    } else if (options_.context_parallel_comm == ContextParallelComm::all_gather ||
               !shape_.has_plain_scores()) {
      op.forward_peak += 2.0 * kv_ * ranks + q_;
      op.backward_peak += 4.0 * kv_ * ranks + q_;
    } else {
      op.forward_peak += 2.0 * kv_ + 2.0 * q_;
      op.backward_peak += 2.0 * kv_ + wide + qkv();
      const size_t window = SymmetricPool::round_size(static_cast<size_t>(2.0 * kv_));
      op.windows = std::min(ranks - 1.0, batch_.segmented ? 3.0 : 4.0) * static_cast<double>(window);
    }
  }

  Operator output() const {
    Operator op =
        row_operator(name_ + ".linear_proj", sizes_, heads_ * as_real(options_.kv_channels), batch_.fp8);
    const bool is_saved_by_core = !(op.fp8 && batch_.fp8_weight_gradients) && !stores_scores() && !copies();
    if (is_saved_by_core) op.add_saved(-op.saved);
    return op;
  }

  const std::string& name_;
  const AttentionLayerOptions& options_;
  const RankSizes& sizes_;
  const RankBatch& batch_;
  AttentionShape shape_;
  AttentionBackend backend_;
  double heads_, groups_;  // of this rank
  double q_, kv_;          // bytes of queries, and of keys or values
};

}  // namespace

AttentionShape attention_shape(const AttentionLayerOptions& options, const RankBatch& batch, int64_t keys) {
  return {.gpu = batch.gpu,
          .dtype = batch.dtype,
          .queries = batch.batch.sequence_length,
          .keys = keys,
          .width = options.kv_channels,
          .causal = options.mask == Mask::causal,
          .window = options.window,
          .segments = batch.segmented || (options.chunk > 0 && options.chunk < keys)
                          ? std::optional(batch.batch.samples)
                          : std::nullopt,
          .dropout = options.dropout,
          .biased = options.alibi || options.distance_bias,
          .capped = options.softcap > 0.0};
}

std::vector<Operator> self_attention_operators(const std::string& name, const AttentionLayerOptions& options,
                                               const RankSizes& sizes) {
  return SelfAttentionCost(name, options, sizes).all();
}

}  // namespace teratron
