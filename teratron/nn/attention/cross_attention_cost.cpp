#include <algorithm>

#include "teratron/nn/attention/attention_cost.h"
#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

class CrossAttentionCost {
 public:
  CrossAttentionCost(const std::string& name, const AttentionLayerOptions& options, const RankSizes& target,
                     const RankSizes& source)
      : name_(name), options_(options), target_(target), source_(source) {}

  std::vector<Operator> all() const {
    Operator keys_and_values = projection("linear_kv", source_, 2.0 * groups(source_));
    keys_and_values.add_saved(-source_.hidden);  // the memory, which all layers share
    return {projection("linear_q", target_, heads(target_)), keys_and_values, core(), output()};
  }

 private:
  // On a rank.
  double heads(const RankSizes& rows) const { return as_real(options_.heads) / rows.shards; }
  double groups(const RankSizes& rows) const {
    return std::max(as_real(options_.query_groups) / rows.shards, 1.0);
  }

  // Hidden states [queries, H] to [queries, heads], or [keys, H] to [keys, 2 groups].
  Operator projection(const char* part, const RankSizes& rows, double heads_on_rank) const {
    const double width = heads_on_rank * as_real(options_.kv_channels);
    return column_operator(name_ + "." + part, rows, width, /*fp8=*/false);
  }

  Operator core() const {
    const double n = heads(target_), width = as_real(options_.kv_channels);
    const double q = target_.tokens * n * width * target_.element;
    const AttentionBackend backend =
        choose_backend(attention_shape(options_, target_.batch, source_.batch.batch.sequence_length));
    const bool stores_scores = backend == AttentionBackend::math;
    // Keys and values may be repeated for every query head of their group.
    const bool repeats = stores_scores || backend == AttentionBackend::flash_cpu;
    const double kv = 2.0 * source_.tokens * (repeats ? n : groups(target_)) * width * target_.element;
    const double scores = target_.samples * n * target_.queries * source_.keys;
    const double score_bytes = stores_scores ? scores * target_.element : 0.0;
    const double stored = stores_scores ? (options_.dropout > 0.0 ? 2.0 : 1.0) * score_bytes
                                        : target_.tokens * n * target_.statistic;
    Operator op{.name = name_ + ".core_attention", .kind = Operator::Kind::attention};
    op.flops = 4.0 * scores * width;
    op.bytes = 2.0 * q + kv;
    op.saved = 2.0 * q + kv + stored;  // queries, keys and values, and the output
    op.forward_peak = op.saved + q + score_bytes;
    op.backward_peak =
        op.saved + 3.0 * q + kv + target_.residual_stream + (stores_scores ? 3.0 * score_bytes : q);
    return op;
  }

  // Its input is the core's.
  Operator output() const {
    const double width = as_real(options_.heads * options_.kv_channels) / target_.shards;
    Operator op = gemm_operator(name_ + ".linear_proj", target_, width, as_real(options_.hidden));
    const double y = target_.whole_hidden();
    op.forward_peak = target_.gemm_workspace + y + target_.residual_stream;
    op.backward_peak =
        target_.gemm_workspace + 2.0 * target_.residual_stream + y + target_.tokens * width * target_.element;
    return op;
  }

  const std::string& name_;
  const AttentionLayerOptions& options_;
  const RankSizes& target_;
  const RankSizes& source_;
};

}  // namespace

std::vector<Operator> cross_attention_operators(const std::string& name, const AttentionLayerOptions& options,
                                                const RankSizes& sizes) {
  return CrossAttentionCost(name, options, sizes, sizes.of_memory()).all();
}

}  // namespace teratron
