#include "teratron/nn/moe/moe_cost.h"

#include <algorithm>
#include <cmath>

#include "teratron/comm/nccl/symmetric_pool.h"
#include "teratron/kernels/fp8/fp8.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/mlp_cost.h"

namespace teratron {

namespace {

constexpr double index_bytes = 8.0;

// One layer on a rank; [T] its tokens, [G] those whose choices its experts' rows are sorted from, [R] rows.
class ExpertBytes {
 public:
  ExpertBytes(const MoeOptions& options, const RankSizes& sizes);

  /// Bytes of the router's scores.
  double scores() const;
  /// Where rows come from and go to.
  double places() const;
  double rows() const { return rows_ * hidden_; }
  /// What is kept of them for the weight gradient.
  double saved_rows() const { return keeps_fp8_ ? columns_ * hidden_ / element_ : rows(); }
  double pre_activations() const { return rows_ * wide_; }
  double activations() const { return rows_ * ffn_; }
  /// Terms of the probabilities' gradient: products in fp32 of what is converted to it.
  double products() const { return activations() * (element_ < 4.0 ? 3.0 * 4.0 / element_ : 1.0); }
  /// Rows in FP8, as they are and transposed; 0 in the model's dtype.
  double cast(double bytes) const { return fp8_ ? (1.0 + columns_ / rows_) * bytes / element_ : 0.0; }
  double probabilities() const { return rows_ * logit_; }
  double input() const { return tokens_ * as_real(options_.experts.hidden) * element_; }
  /// The sum over a token's experts, which the projection after latent experts saves.
  double latent_sums() const { return options_.latent > 0 ? tokens_ * hidden_ : 0.0; }
  /// Inputs before they are sorted by expert, if they are not the layer's own.
  double arrived() const;
  /// Sums over a token's experts, fp32, and the part that is added.
  double sums() const { return gathered_ * hidden_ * (1.0 + std::max(4.0 / element_, 1.0)); }
  double weights() const;
  /// Symmetric memory in which tokens, gradients and sums in fp32 arrive; it is kept.
  double windows() const;
  double flops() const;

 private:
  void choose_rows(const RankBatch& batch);
  double ranks_of_token() const;

  const MoeOptions& options_;
  double element_, logit_, score_;  // bytes of an activation, a logit, a score
  double hidden_, wide_, ffn_;      // bytes of a token; of a row of fc1's output, and of fc2's input
  double experts_, topk_, expert_ranks_;
  double tokens_, seen_, gathered_;  // T; those of the expert tensor-parallel group; G, unless rows are sent
  double rows_ = 0, sent_ = 0;       // R; rows that go to other ranks and come from them
  double columns_ = 0;               // of transposes in FP8
  bool exchanges_, pads_, drops_;
  bool fp8_, keeps_fp8_;  // inputs for the weight gradient
};

ExpertBytes::ExpertBytes(const MoeOptions& options, const RankSizes& sizes)
    : options_(options),
      element_(sizes.element),
      logit_(element_),
      score_(sizes.statistic),
      hidden_(as_real(options.latent > 0 ? options.latent : options.experts.hidden) * element_),
      experts_(as_real(options_.router.experts)),
      topk_(as_real(options_.router.routing.topk)),
      expert_ranks_(as_real(sizes.batch.expert_parallel)),
      tokens_(sizes.local_tokens),
      exchanges_(sizes.batch.expert_parallel > 1 && options_.dispatch == TokenDispatch::all_to_all),
      pads_(options_.router.pad_to_capacity),
      drops_(options_.router.capacity_factor > 0.0),
      fp8_(sizes.batch.fp8),
      keeps_fp8_(sizes.batch.fp8 && sizes.batch.fp8_weight_gradients) {
  if (options_.router.dtype) logit_ = *options_.router.dtype == at::kDouble ? 8.0 : 4.0;
  score_ = std::max(score_, logit_ == 8.0 ? 8.0 : 4.0);
  const auto shards = as_real(sizes.batch.expert_tensor_parallel);
  ffn_ = as_real(options_.experts.ffn_hidden) / shards * element_;
  wide_ = ffn_ * as_real(parts_of(options_.experts.activation));
  // Ranks of the expert tensor-parallel group see each other's tokens, unless all have the same.
  seen_ = tokens_ * (sizes.batch.sequence_parallel || sizes.batch.tensor_parallel == 1 ? shards : 1.0);
  gathered_ = seen_ * (!exchanges_ ? expert_ranks_ : pads_ ? 1.0 : ranks_of_token());
  choose_rows(sizes.batch);
  columns_ =
      as_real(fp8_columns(static_cast<int64_t>(rows_), static_cast<int64_t>(experts_ / expert_ranks_)));
}

// That have one of its experts, if it chooses all alike.
double ExpertBytes::ranks_of_token() const {
  const double experts = experts_ / expert_ranks_;
  double missed = 1.0;
  for (double chosen = 0.0; chosen < topk_; ++chosen)
    missed *= std::max(0.0, 1.0 - experts / (experts_ - chosen));
  return expert_ranks_ * (1.0 - missed);
}

void ExpertBytes::choose_rows(const RankBatch& batch) {
  const double factor = options_.router.capacity_factor;
  rows_ = sent_ = seen_ * topk_;
  if (drops_ && expert_ranks_ > 1.0) rows_ = sent_ = rows_ * std::min(factor, 1.0);
  if (!pads_) return;
  const double tokens_of_microbatch = as_real(batch.batch.samples * batch.batch.sequence_length);
  const double capacity = std::ceil(tokens_of_microbatch * topk_ / experts_ * factor);
  const double ranks_of_microbatch = as_real(batch.tensor_parallel * batch.context_parallel);
  const auto rows_of = [&](double tokens) {
    const double ranks = as_real(batch.expert_tensor_parallel) * tokens / seen_;
    return std::min(capacity * std::ceil(ranks / ranks_of_microbatch), tokens);
  };
  sent_ = experts_ * rows_of(seen_);
  rows_ = exchanges_ ? sent_ : experts_ / expert_ranks_ * rows_of(gathered_);
}

double ExpertBytes::scores() const {
  const RouterOptions& router = options_.router;
  const bool softmax = router.routing.score == RouterScore::softmax;
  const bool wide = logit_ == score_;  // logits are used as they are
  const double all = tokens_ * experts_ * score_, chosen = tokens_ * topk_ * score_, one = tokens_ * score_;
  const double unnormalized = router.routing.score == RouterScore::sqrtsoftplus ? 2.0 * all : all;
  double bytes = router.sinkhorn ? all : unnormalized;
  bool has_logits =
      !router.sinkhorn && wide &&
      (router.routing.score == RouterScore::sqrtsoftplus || (softmax && !router.routing.pre_softmax));
  if (!router.sinkhorn && softmax && !router.routing.pre_softmax) bytes += chosen;
  if (!router.sinkhorn && !softmax && topk_ > 1.0) bytes += chosen + one;
  if (router.aux_loss + router.seq_aux_loss + router.global_aux_loss > 0.0) {
    bytes += softmax ? all : unnormalized + one;
    if (router.routing.score == RouterScore::sqrtsoftplus && wide) bytes -= all;  // of the same logits
  }
  if (router.z_loss > 0.0) bytes += one + (has_logits ? 0.0 : all);
  return bytes + tokens_ * topk_ * index_bytes;
}

double ExpertBytes::places() const {
  const double slots = gathered_ * topk_;
  const bool all = expert_ranks_ == 1.0 && !drops_;
  const double rows = exchanges_ ? sent_ : rows_;
  double bytes = slots * index_bytes + (pads_ ? rows : slots) * index_bytes + (all ? 0.0 : slots);
  if (exchanges_)
    bytes += pads_ ? 2.0 * rows_ * index_bytes : seen_ * expert_ranks_ * (2.0 * index_bytes + 1.0);
  return bytes;
}

double ExpertBytes::arrived() const {
  if (exchanges_ && pads_) return rows();
  return gathered_ > tokens_ ? gathered_ * hidden_ : 0.0;
}

double ExpertBytes::weights() const {
  return experts_ / expert_ranks_ * hidden_ / element_ * (wide_ + ffn_);
}

double ExpertBytes::windows() const {
  if (expert_ranks_ == 1.0) return 0.0;
  const auto window = [](double bytes) {
    return static_cast<double>(SymmetricPool::round_size(static_cast<size_t>(bytes)));
  };
  const double wide = std::max(4.0 / element_, 1.0);
  if (exchanges_) {
    const double bytes = (pads_ ? sent_ / expert_ranks_ : seen_) * hidden_;
    return (expert_ranks_ - 1.0) * (window(bytes) + (wide > 1.0 ? window(wide * bytes) : 0.0));
  }
  // An all-gather's, and those of the reduce-scatters of forward and backward.
  const double bytes = expert_ranks_ * seen_ * hidden_;
  return 2.0 * window(bytes) + (wide > 1.0 ? window(wide * bytes) : 0.0);
}

// Padding does not count.
double ExpertBytes::flops() const {
  const double projections = options_.latent > 0 ? 2.0 * as_real(options_.experts.hidden) * tokens_ : 0.0;
  return 2.0 * hidden_ / element_ * (seen_ * topk_ * (wide_ + ffn_) / element_ + projections);
}

Operator routed(const ExpertBytes& n, double jitter) {
  Operator op{.kind = Operator::Kind::gemm, .flops = n.flops()};
  op.bytes =
      3.0 * n.rows() + n.pre_activations() + n.activations() + n.input() + n.weights() + 2.0 * n.arrived();
  op.saved = n.input() + jitter + n.scores() + n.places() + n.probabilities() + n.saved_rows() +
             n.pre_activations() + n.latent_sums();
  const double computing = n.activations() + n.rows() + n.cast(n.rows()) + n.cast(n.activations());
  const double combining = n.rows() + n.sums();
  op.forward_peak = op.saved + n.arrived() + std::max(computing, combining);
  const double gradients = n.rows() + 2.0 * n.activations() + n.cast(n.rows()) + n.cast(n.pre_activations());
  op.backward_peak =
      op.saved + std::max({gradients + n.products(), gradients + n.pre_activations() + n.rows(), combining});
  return op;
}

// They run after the routed experts and in backward before them, or beside the exchange of tokens.
void add_shared(Operator& op, const MoeOptions& options, const RankSizes& sizes) {
  if (!options.shared) return;
  const MlpOptions& mlp = options.shared->mlp;
  const Operator dense = mlp_operator("", mlp, sizes);
  op.flops += dense.flops;
  op.bytes += dense.bytes;
  // The input is the router's, unless that has jitter or it is kept in FP8.
  const double input = column_input(sizes, as_real(mlp.hidden), sizes.batch.fp8);
  const bool own_input = options.router.jitter > 0.0 || input < sizes.hidden;
  double saved = dense.saved - (own_input ? 0.0 : input);
  if (options.shared->gate) saved += sizes.hidden + sizes.local_tokens * sizes.element;
  op.saved += saved;
  op.forward_peak = sizes.batch.expert_parallel > 1
                        ? op.forward_peak + saved + sizes.hidden
                        : std::max(op.forward_peak, op.saved + 2.0 * sizes.hidden);
  const double wide = as_real(mlp.ffn_hidden * parts_of(mlp.activation)) / sizes.shards;
  op.backward_peak =
      std::max(op.backward_peak + sizes.hidden, op.saved + sizes.tokens * wide * sizes.element);
}

}  // namespace

std::vector<Operator> moe_operators(const std::string& name, const MoeOptions& options,
                                    const RankSizes& sizes) {
  const ExpertBytes bytes(options, sizes);
  Operator op = routed(bytes, options.router.jitter > 0.0 ? sizes.hidden : 0.0);
  op.windows = bytes.windows();
  op.name = name;
  op.fp8 = sizes.batch.fp8;
  add_shared(op, options, sizes);
  op.forward_peak += sizes.gemm_workspace + sizes.hidden;
  op.backward_peak += sizes.gemm_workspace + 2.0 * sizes.residual_stream;
  if (!options.recompute) return {op};
  const bool reads_input = options.router.jitter == 0.0 || options.shared;
  if (reads_input) op.add_saved(-sizes.hidden);
  op.recompute_unit = 0;
  const Operator input{.name = name + ".input", .saved = sizes.hidden, .forward_peak = sizes.hidden};
  return {input, op};
}

}  // namespace teratron
