#include "teratron/nn/mla/mla_cost.h"

#include "teratron/nn/attention/attention_cost.h"
#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

class LatentCost {
 public:
  LatentCost(const std::string& name, const LatentAttentionOptions& options, const RankSizes& sizes)
      : name_(name),
        options_(options),
        sizes_(sizes),
        shape_(attention_shape(options.attention, sizes.batch, sizes.batch.batch.sequence_length)),
        heads_(as_real(options.attention.heads) / sizes.shards),
        qk_(as_real(options.attention.kv_channels)),
        v_(as_real(options.attention.v_channels)),
        nope_(as_real(options.nope_channels())),
        rope_(as_real(options.rope_channels)),
        rank_(as_real(options.kv_rank)) {
    shape_.one_width = true;  // values are filled up
    stores_scores_ = choose_backend(shape_) == AttentionBackend::math;
  }

  std::vector<Operator> all() const {
    std::vector<Operator> all;
    const double query_rank = as_real(options_.query_rank);
    if (query_rank > 0) {
      all.push_back(down("linear_q_down_proj", query_rank));
      if (options_.norm) all.push_back(norm("q_layernorm", query_rank));
      all.push_back(up("linear_q_up_proj", query_rank, heads_ * qk_));
    } else {
      all.push_back(column_operator(name_ + ".linear_q_proj", sizes_, heads_ * qk_, sizes_.batch.fp8));
    }
    all.push_back(down("linear_kv_down_proj", rank_ + rope_));
    if (options_.norm) all.push_back(norm("kv_layernorm", rank_));
    all.push_back(up("linear_kv_up_proj", rank_, heads_ * (nope_ + v_)));
    all.push_back(join());
    all.push_back(core());
    all.push_back(row_operator(name_ + ".linear_proj", sizes_, heads_ * v_, sizes_.batch.fp8));
    return all;
  }

 private:
  double bytes(double tokens, double width) const { return tokens * width * sizes_.element; }

  // This rank's rows, by the whole weight. Both down projections save the same input.
  Operator down(const char* part, double out) const {
    const double tokens = sizes_.local_tokens, width = as_real(sizes_.states.width);
    const bool saves = options_.query_rank == 0 || std::string_view(part) == "linear_q_down_proj";
    Operator op{.name = name_ + "." + part, .kind = Operator::Kind::gemm, .fp8 = sizes_.batch.fp8};
    op.flops = 2.0 * tokens * width * out;
    op.bytes = bytes(tokens, width + out) + width * out * sizes_.element;
    op.saved = saves && options_.query_rank > 0 ? bytes(tokens, width) : 0.0;
    op.forward_peak = op.saved + sizes_.gemm_workspace + bytes(tokens, out);
    op.backward_peak = op.saved + sizes_.gemm_workspace + bytes(tokens, out + width) + sizes_.residual_stream;
    return op;
  }

  Operator norm(const char* part, double width) const {
    Operator op{.name = name_ + "." + part, .kind = Operator::Kind::normalization};
    op.bytes = 2.0 * bytes(sizes_.local_tokens, width);
    op.saved = bytes(sizes_.local_tokens, width) + sizes_.local_tokens * sizes_.statistic;
    op.forward_peak = op.saved + bytes(sizes_.local_tokens, width);
    op.backward_peak = op.saved + 2.0 * bytes(sizes_.local_tokens, width) + sizes_.residual_stream;
    op.logged_flops = 2.0 * sizes_.local_tokens * width;  // Megatron-LM's log counts them
    return op;
  }

  Operator up(const char* part, double in, double out) const {
    const double y = bytes(sizes_.tokens, out), whole = bytes(sizes_.tokens, in);
    Operator op = gemm_operator(name_ + "." + part, sizes_, in, out);
    op.fp8 = sizes_.batch.fp8;
    op.saved = column_input(sizes_, in, op.fp8);
    const double input = op.saved + sizes_.gathered(whole) + sizes_.gemm_workspace;
    op.forward_peak = input + y;
    op.backward_peak = input + 2.0 * y + whole + sizes_.residual_stream;
    return op;
  }

  double q() const { return bytes(sizes_.tokens, heads_ * qk_); }
  double v() const { return bytes(sizes_.tokens, heads_ * v_); }
  // What attention reads: queries, keys, and values in the projection that they are views of, or filled up.
  double inputs() const {
    return 2.0 * q() + (stores_scores_ ? bytes(sizes_.tokens, heads_ * (nope_ + v_)) : q());
  }

  Operator join() const {
    Operator op{.name = name_ + ".qkv", .kind = Operator::Kind::pointwise};
    const double projection = bytes(sizes_.tokens, heads_ * (nope_ + v_));
    op.bytes = 3.0 * q() + 2.0 * projection;
    op.saved = inputs();
    op.forward_peak = op.saved + projection + bytes(sizes_.tokens, rope_);
    op.backward_peak = op.saved + 2.0 * q() + projection + v() + sizes_.residual_stream;
    return op;
  }

  Operator core() const {
    const RankBatch& batch = sizes_.batch;
    Operator op{.name = name_ + ".core_attention", .kind = Operator::Kind::attention};
    const double squares = batch.batch.squared_lengths.value_or(sizes_.samples * sizes_.keys * sizes_.keys) /
                           as_real(batch.context_parallel);
    op.flops = 2.0 * heads_ * (qk_ + v_) * squares;
    op.masked_flops = shape_.causal ? op.flops / 2.0 : 0.0;
    op.bytes = 2.0 * q() + 2.0 * v();
    if (stores_scores_) {
      const double scores = sizes_.samples * heads_ * sizes_.queries * sizes_.keys * sizes_.element;
      if (options_.attention.recompute_core) op.recompute_unit = 0;
      op.bytes += 4.0 * scores;
      op.saved = options_.attention.dropout > 0.0 ? 2.0 * scores : scores;
      op.forward_peak = op.saved + scores + 2.0 * v();
      op.backward_peak = 3.0 * scores + 3.0 * q() + v() + sizes_.residual_stream;
      return op;
    }
    const double logsumexp = sizes_.tokens * heads_ * sizes_.statistic;
    op.saved = q() + logsumexp;  // the output is filled up, too
    op.forward_peak = op.saved + q();
    op.backward_peak = op.saved + 4.0 * q() + q() / sizes_.element * 4.0 + 2.0 * logsumexp;
    if (batch.context_parallel > 1) {
      op.forward_peak += 4.0 * q();
      op.backward_peak += 5.0 * q() + 3.0 * q() / sizes_.element * 4.0;
    }
    return op;
  }

  const std::string& name_;
  const LatentAttentionOptions& options_;
  const RankSizes& sizes_;
  AttentionShape shape_;
  bool stores_scores_ = false;
  double heads_;  // of this rank
  double qk_, v_, nope_, rope_, rank_;
};

}  // namespace

std::vector<Operator> latent_attention_operators(const std::string& name,
                                                 const LatentAttentionOptions& options,
                                                 const RankSizes& sizes) {
  return LatentCost(name, options, sizes).all();
}

}  // namespace teratron
