#include "teratron/nn/attention/context_parallel/partial_attention.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/nn/attention/backend.h"

namespace teratron {

namespace {

// [B, N, S, D] as [S, B, N, D].
at::Tensor sequence_first(const at::Tensor& x_BNSD) {
  return x_BNSD.permute({2, 0, 1, 3});
}

PartialAttention cudnn_partial(const AttentionRequest& request) {
  const auto result = at::_scaled_dot_product_cudnn_attention(
      heads_first(request.q_SBND), heads_first(request.k_SBGD), heads_first(request.v_SBGD), std::nullopt,
      /*compute_log_sumexp=*/true, 0.0, is_causal(request), false, request.scale);
  return {sequence_first(std::get<0>(result)), std::get<1>(result).squeeze(3)};
}

QueryKeyValue cudnn_partial_backward(const AttentionRequest& request, const PartialAttention& whole,
                                     const at::Tensor& dy_SBND, const QueryKeyValue& out) {
  const auto given_or_new = [](const at::Tensor& given, const at::Tensor& x) {
    return given.defined() ? given : at::empty_like(x, at::MemoryFormat::Contiguous);
  };
  const QueryKeyValue d{given_or_new(out.q_SBND, request.q_SBND), given_or_new(out.k_SBGD, request.k_SBGD),
                        given_or_new(out.v_SBGD, request.v_SBGD)};
  cudnn_attention_backward(
      {heads_first(request.q_SBND), heads_first(request.k_SBGD), heads_first(request.v_SBGD),
       heads_first(whole.y_SBND), whole.logsumexp_BNS.unsqueeze(3)},
      heads_first(dy_SBND), {.scale = request.scale, .causal = is_causal(request)},
      {heads_first(d.q_SBND), heads_first(d.k_SBGD), heads_first(d.v_SBGD)});
  return d;
}

// With segments the tokens of all samples are one row, which is copied if there are several samples.
struct FlashShape {
  int64_t samples;
  std::optional<at::Tensor> cu_seqlens_q, cu_seqlens_k;
  std::optional<int64_t> keys_before, keys_after;
  int64_t longest_q, longest_k;

  explicit FlashShape(const AttentionRequest& request)
      : samples(request.q_SBND.size(1)),
        longest_q(request.q_SBND.size(0)),
        longest_k(request.k_SBGD.size(0)) {
    if (has_window(request)) keys_before = request.window - 1, keys_after = 0;
    if (!request.segments.defined()) return;
    cu_seqlens_q = request.segments.cu_seqlens_q;
    cu_seqlens_k = request.segments.keys();
    const int64_t longest = request.packed.defined() ? request.packed.length : request.longest_segment;
    if (longest > 0) longest_q = longest_k = longest;
    longest_q = std::max<int64_t>(longest_q, 2);  // for one query, ATen would take segments for samples
  }
  at::Tensor arranged(const at::Tensor& x_SBND) const {
    const at::Tensor x_BSND = x_SBND.transpose(0, 1);
    return cu_seqlens_q ? x_BSND.flatten(0, 1) : x_BSND;
  }
  at::Tensor restored(const at::Tensor& x) const {
    return (cu_seqlens_q ? x.unflatten(0, {samples, -1}) : x).transpose(0, 1);
  }
  // [B, N, S] as it is, with segments as [N, B S].
  at::Tensor arranged_sums(const at::Tensor& x_BNS) const {
    return (cu_seqlens_q ? x_BNS.transpose(0, 1).flatten(1) : x_BNS).contiguous();
  }
  at::Tensor restored_sums(const at::Tensor& x) const {
    return cu_seqlens_q ? x.unflatten(1, {samples, -1}).transpose(0, 1) : x;
  }
};

PartialAttention flash_partial(const AttentionRequest& request) {
  const FlashShape shape(request);
  const auto result = at::_flash_attention_forward(
      shape.arranged(request.q_SBND), shape.arranged(request.k_SBGD), shape.arranged(request.v_SBGD),
      shape.cu_seqlens_q, shape.cu_seqlens_k, shape.longest_q, shape.longest_k, 0.0, is_causal(request),
      /*return_debug_mask=*/false, request.scale, shape.keys_before, shape.keys_after);
  return {shape.restored(std::get<0>(result)), shape.restored_sums(std::get<1>(result))};
}

QueryKeyValue flash_partial_backward(const AttentionRequest& request, const PartialAttention& whole,
                                     const at::Tensor& dy_SBND, const QueryKeyValue& /*out*/) {
  const FlashShape shape(request);
  // Read by dropout only, of which there is none.
  const at::Tensor unused = at::zeros({2}, request.q_SBND.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      shape.arranged(dy_SBND), shape.arranged(request.q_SBND), shape.arranged(request.k_SBGD),
      shape.arranged(request.v_SBGD), shape.arranged(whole.y_SBND), shape.arranged_sums(whole.logsumexp_BNS),
      shape.cu_seqlens_q.value_or(at::Tensor()), shape.cu_seqlens_k.value_or(at::Tensor()), shape.longest_q,
      shape.longest_k, 0.0, is_causal(request), unused, unused, request.scale, shape.keys_before,
      shape.keys_after);
  return {shape.restored(dq), shape.restored(dk), shape.restored(dv)};
}

// fp32 on GPUs, where no library's kernel gives the log-sum-exp.
struct StoredScores {
  at::Tensor q_BNSD, k_BNSD, v_BNSD;  // a key and a value for each query head
  at::Tensor scores_BNSS;             // -inf where a key is hidden

  explicit StoredScores(const AttentionRequest& request)
      : q_BNSD(heads_first(request.q_SBND)),
        k_BNSD(repeat_groups(heads_first(request.k_SBGD), q_BNSD.size(1))),
        v_BNSD(repeat_groups(heads_first(request.v_SBGD), q_BNSD.size(1))),
        scores_BNSS(at::matmul(q_BNSD, k_BNSD.transpose(2, 3)) * request.scale) {
    const at::Tensor hidden = hidden_keys(request);
    if (hidden.defined()) scores_BNSS.masked_fill_(hidden, -INFINITY);
  }
};

PartialAttention math_partial(const AttentionRequest& request) {
  const StoredScores stored(request);
  const at::Tensor logsumexp_BNS = stored.scores_BNSS.logsumexp(3);
  const at::Tensor weights = (stored.scores_BNSS - logsumexp_BNS.unsqueeze(3)).exp().nan_to_num(0.0);
  return {sequence_first(at::matmul(weights, stored.v_BNSD)), logsumexp_BNS};
}

at::Tensor sum_over_groups(const at::Tensor& x_BNSD, int64_t groups) {
  return sequence_first(x_BNSD.unflatten(1, {groups, -1}).sum(2));
}

QueryKeyValue math_partial_backward(const AttentionRequest& request, const PartialAttention& whole,
                                    const at::Tensor& dy_SBND, const QueryKeyValue& /*out*/) {
  const StoredScores stored(request);
  const int64_t groups = request.k_SBGD.size(2);
  const at::Tensor dy = heads_first(dy_SBND), y = heads_first(whole.y_SBND);
  const at::Tensor p = (stored.scores_BNSS - whole.logsumexp_BNS.unsqueeze(3)).exp().nan_to_num(0.0);
  const at::Tensor dp = at::matmul(dy, stored.v_BNSD.transpose(2, 3));
  const at::Tensor ds = p * (dp - (dy * y).sum(3, true)) * request.scale;
  return {sequence_first(at::matmul(ds, stored.k_BNSD)),
          sum_over_groups(at::matmul(ds.transpose(2, 3), stored.q_BNSD), groups),
          sum_over_groups(at::matmul(p.transpose(2, 3), dy), groups)};
}

struct PartialBackend {
  bool (*supports)(const AttentionShape&);
  PartialAttention (*forward)(const AttentionRequest&);
  QueryKeyValue (*backward)(const AttentionRequest&, const PartialAttention&, const at::Tensor&,
                            const QueryKeyValue& out);
};

template <AttentionBackend backend>
bool supported_by(const AttentionShape& shape) {
  return supports(backend, shape);
}

const PartialBackend& choose_partial(const AttentionRequest& request) {
  static constexpr PartialBackend backends[] = {
      {[](const AttentionShape& shape) { return !shape.gpu; },
       [](const AttentionRequest& r) {
         const FlashCpuOutput output = flash_cpu_forward(r);
         return PartialAttention{output.y_SBND, output.logsumexp_BNS};
       },
       [](const AttentionRequest& r, const PartialAttention& whole, const at::Tensor& dy_SBND,
          const QueryKeyValue& /*out*/) {
         return flash_cpu_backward(r, {whole.y_SBND, whole.logsumexp_BNS}, dy_SBND);
       }},
      {supported_by<AttentionBackend::cudnn>, cudnn_partial, cudnn_partial_backward},
      {supported_by<AttentionBackend::flash>, flash_partial, flash_partial_backward},
      {[](const AttentionShape&) { return true; }, math_partial, math_partial_backward}};
  const AttentionShape shape = shape_of(request);
  for (const PartialBackend& backend : backends) {
    if (backend.supports(shape)) return backend;
  }
  TERATRON_ASSERT(false, "math supports every request");
}

}  // namespace

PartialAttention partial_attention(const AttentionRequest& request) {
  return choose_partial(request).forward(request);
}

QueryKeyValue partial_attention_backward(const AttentionRequest& request, const PartialAttention& whole,
                                         const at::Tensor& dy_SBND, const QueryKeyValue& out) {
  return choose_partial(request).backward(request, whole, dy_SBND, out);
}

}  // namespace teratron
