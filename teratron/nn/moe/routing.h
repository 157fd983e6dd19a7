// Which experts see a token, as functions of the router's logits [T, E] (T tokens, E experts, K per token).
//
//   softmax (Shazeer et al. 2017)        top-k of the logits, then softmax over the chosen ones; or softmax
//                                        over all experts, then top-k, not renormalised (pre_softmax) unless
//                                        there is a least sum to divide by (ERNIE 4.5)
//   sigmoid (DeepSeek-V3), sqrtsoftplus  s = sigmoid(l) or sqrt(softplus(l)); top-k of s + expert bias; the
//                                        probabilities are s, without the bias, divided by their sum if K >
//                                        1, or also if it is 1 (normalize_one)
//   sinkhorn (Clark et al. 2022)         training: top-k of a balanced assignment of the tokens
//
// Scores are computed in fp32 (fp64 for fp64 logits). Ties go to the lowest expert, those between tokens to
// the first one, so that choices follow from the logits alone, on any device and for any order of tokens.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace teratron {

enum class RouterScore : uint8_t { softmax, sigmoid, sqrtsoftplus };

struct RoutingOptions {
  int64_t topk = 2;
  RouterScore score = RouterScore::softmax;
  bool pre_softmax = false;
  bool normalize = true;  // sigmoid and sqrtsoftplus: divide by the sum
  bool normalize_one = false;
  std::optional<double> least_sum = {};  // pre_softmax: divide by the sum, or by this if it is less
  double scaling = 1.0;                  // of the probabilities
  /// Group-limited: only the experts of `group_topk` groups of consecutive experts are candidates, those with
  /// the largest sum of their `group_score_topk` best scores, by default topk / group_topk. 0: no groups.
  int64_t groups = 0;
  int64_t group_topk = 0;
  int64_t group_score_topk = 0;
};

/// The experts of each token, in ascending order, and what their outputs are multiplied by.
struct Routing {
  at::Tensor experts_TK;  // i64
  at::Tensor probs_TK;    // of the logits' dtype, differentiable
};

/// `expert_bias_E`, added to the scores for the choice, may be undefined.
Routing route(const at::Tensor& logits_TE, const at::Tensor& expert_bias_E, const RoutingOptions& options);
/// Routing to given experts [T, K], ascending: the probabilities are those of sinkhorn, sigmoid for one
/// expert, else softmax over all.
Routing route_to(const at::Tensor& logits_TE, const at::Tensor& experts_TK);

/// i64 [T, k], ascending: the k largest of each row.
at::Tensor top_experts(const at::Tensor& scores_TE, int64_t k);
/// Scores that sum to 1 in each row, for losses (load_balancing.h): softmax, or sigmoid and sqrtsoftplus
/// divided by their sum. Differentiable.
at::Tensor normalized_scores(const at::Tensor& logits_TE, RouterScore score);
/// i64 [E]: tokens per expert; `kept_TK`, bool, selects those that count, undefined: all.
at::Tensor expert_counts(const at::Tensor& experts_TK, int64_t experts, const at::Tensor& kept_TK = {});

/// Balanced assignment exp(l) scaled so that rows sum to 1 / T and columns to 1 / E (Sinkhorn, Knopp 1967),
/// of all tokens that are balanced together. Waits for the device.
at::Tensor sinkhorn(const at::Tensor& logits_TE);

/// Tokens that do not fit into an expert are dropped: it keeps the `capacity` tokens of the largest
/// probability, or the first ones.
enum class DropPolicy : uint8_t { probs, position };
struct Capacity {
  int64_t experts = 0;
  int64_t per_expert = 0;
  DropPolicy policy = DropPolicy::probs;
};
/// Which choices a capacity leaves.
struct KeptChoices {
  at::Tensor kept_TK;  // bool [T, K]; undefined: all
  /// Rows of a micro-batch that an expert has at most, if its input is padded to them. 0: it is not padded.
  int64_t padded_capacity = 0;
};
/// ceil(tokens * topk / experts * factor).
int64_t expert_capacity(int64_t tokens, int64_t topk, int64_t experts, double factor);
/// bool [T, K]: which choices are kept, of all tokens that share the capacity, in their global order.
at::Tensor kept_within_capacity(const Routing& routing, const Capacity& capacity);

}  // namespace teratron
