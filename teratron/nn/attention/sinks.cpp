#include "teratron/nn/attention/sinks.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/attention/context_parallel/merged_attention.h"

namespace teratron {

namespace {

// [N, 1], to be added to log-sum-exps.
at::Tensor column(const at::Tensor& sinks_N, const at::Tensor& logsumexp_BNS) {
  return sinks_N.to(logsumexp_BNS.scalar_type()).unsqueeze(1);
}

// x [B, N, S] as a factor of [S, B, N, D].
at::Tensor as_factor(const at::Tensor& x_BNS) {
  return x_BNS.permute({2, 0, 1}).unsqueeze(3);
}

// One part, which has all keys.
struct WholeAttention final : MergedAttention {
  explicit WholeAttention(AttentionRequest request_) : request(std::move(request_)) {}

  PartialAttention forward(const QueryKeyValue& qkv) const override {
    return partial_attention(with_tensors(qkv));
  }

  QueryKeyValue backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                         const at::Tensor& dy_SBND) const override {
    const QueryKeyValue d =
        partial_attention_backward(with_tensors(qkv), whole, dy_SBND, empty_gradients(qkv));
    return {d.q_SBND.to(qkv.q_SBND.scalar_type()), d.k_SBGD.to(qkv.k_SBGD.scalar_type()),
            d.v_SBGD.to(qkv.v_SBGD.scalar_type())};
  }

  AttentionRequest request;  // without tensors

 private:
  AttentionRequest with_tensors(const QueryKeyValue& qkv) const {
    AttentionRequest whole = request;
    whole.q_SBND = qkv.q_SBND;
    whole.k_SBGD = qkv.k_SBGD;
    whole.v_SBGD = qkv.v_SBGD;
    return whole;
  }
};

}  // namespace

PartialAttention with_sinks(const PartialAttention& whole, const at::Tensor& sinks_N, at::ScalarType dtype) {
  const at::Tensor& given = whole.logsumexp_BNS;
  const at::Tensor none = given.isinf();  // libraries differ in the sign
  const at::Tensor logsumexp = given.masked_fill(none, -INFINITY), sinks = column(sinks_N, given);
  const at::Tensor y = whole.y_SBND * as_factor(at::sigmoid(logsumexp - sinks));
  return {y.masked_fill(as_factor(none), 0.0).to(dtype).contiguous(),
          at::logaddexp(logsumexp, sinks.expand_as(logsumexp))};
}

at::Tensor sinks_gradient(const PartialAttention& whole, const at::Tensor& dy_SBND,
                          const at::Tensor& sinks_N) {
  const at::Tensor& logsumexp = whole.logsumexp_BNS;
  const at::ScalarType wide = logsumexp.scalar_type();
  const at::Tensor share = (column(sinks_N, logsumexp) - logsumexp).exp();
  const at::Tensor products_SBN = (dy_SBND.to(wide) * whole.y_SBND).sum(3);
  return (share * products_SBN.permute({1, 2, 0}))
      .sum(at::IntArrayRef({0, 2}))
      .neg()
      .to(sinks_N.scalar_type());
}

at::Tensor attention_with_sinks(const AttentionRequest& request) {
  TERATRON_ASSERT(request.dropout == 0.0 && !request.alibi_slopes.defined() &&
                      !request.distance_bias.defined() && request.softcap == 0.0 && has_one_width(request),
                  "sinks with scores that no part of an attention has");
  return merged_attention({request.q_SBND, request.k_SBGD, request.v_SBGD},
                          c10::make_intrusive<WholeAttention>(without_tensors(request)), request.sinks_N);
}

}  // namespace teratron
