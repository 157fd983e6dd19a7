#include "teratron/nn/attention/attention.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/qkv.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_half_on_gpu(const AttentionRequest& request) {
  const at::ScalarType dtype = request.q_SBND.scalar_type();
  return request.q_SBND.is_cuda() && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

// No dropout, no ALiBi and no bias. Fused backends have scores in fp32 and ignore the divisor of scores.
bool has_plain_scores(const AttentionRequest& request) {
  return request.dropout == 0.0 && !request.alibi_slopes.defined() && !request.distance_bias.defined();
}

bool flash_cpu_supports(const AttentionRequest& request) {
  return request.q_SBND.is_cpu() && has_plain_scores(request);
}

AttentionForward cudnn_forward(const QueryKeyValue& qkv, const AttentionOptions& options, bool for_backward) {
  const at::Tensor q = heads_first(qkv.q_SBND), k = heads_first(qkv.k_SBGD), v = heads_first(qkv.v_SBGD);
  const auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, for_backward, 0.0,
                                                              options.causal, false, options.scale);
  return {q, k, v, std::get<0>(result), std::get<1>(result)};
}

struct CudnnAttention : torch::autograd::Function<CudnnAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_SBND, const at::Tensor& k_SBGD,
                            const at::Tensor& v_SBGD, const AttentionOptions& options) {
    const AttentionForward result = cudnn_forward({q_SBND, k_SBGD, v_SBGD}, options, true);
    context->save_for_backward({q_SBND, k_SBGD, v_SBGD, result.y_BNSD, result.logsumexp_BNS1});
    context->saved_data["scale"] = options.scale;
    context->saved_data["causal"] = options.causal;
    return merge_heads(result.y_BNSD);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const QueryKeyValue qkv{saved[0], saved[1], saved[2]};
    const at::Tensor dy_SBND = gradients[0].contiguous().unflatten(2, {qkv.q_SBND.size(2), -1});
    const QueryKeyValue d = empty_gradients(qkv);
    cudnn_attention_backward(
        {heads_first(qkv.q_SBND), heads_first(qkv.k_SBGD), heads_first(qkv.v_SBGD), saved[3], saved[4]},
        heads_first(dy_SBND),
        {context->saved_data["scale"].toDouble(), context->saved_data["causal"].toBool()},
        {heads_first(d.q_SBND), heads_first(d.k_SBGD), heads_first(d.v_SBGD)});
    return {d.q_SBND, d.k_SBGD, d.v_SBGD, at::Tensor()};
  }
};

at::Tensor cudnn(const AttentionRequest& request) {
  const AttentionOptions options{.scale = request.scale, .causal = is_causal(request)};
  const bool differentiable =
      request.q_SBND.requires_grad() || request.k_SBGD.requires_grad() || request.v_SBGD.requires_grad();
  if (at::GradMode::is_enabled() && differentiable) {
    return CudnnAttention::apply(request.q_SBND, request.k_SBGD, request.v_SBGD, options);
  }
  return merge_heads(cudnn_forward({request.q_SBND, request.k_SBGD, request.v_SBGD}, options, false).y_BNSD);
}

bool flash_varlen_supports(const AttentionRequest& request) {
  return request.segments.defined() && flash_supports(request);
}

// ATen's FlashAttention-2 (Dao 2023); deterministic if ATen must be. Causal masks are aligned bottom-right;
// grouped heads are not repeated. With segments, several samples are copied so that each is contiguous.
at::Tensor flash(const AttentionRequest& request) {
  const Segments& segments = request.segments;
  const int64_t batch = request.q_SBND.size(1), queries = request.q_SBND.size(0),
                keys = request.k_SBGD.size(0);
  const auto arranged = [&](const at::Tensor& x_SBND) {
    const at::Tensor x_BSND = x_SBND.transpose(0, 1);
    return segments.defined() ? x_BSND.flatten(0, 1) : x_BSND;
  };
  std::optional<at::Tensor> cu_seqlens_q, cu_seqlens_k;
  std::optional<int64_t> keys_before, keys_after;
  if (segments.defined()) cu_seqlens_q = segments.cu_seqlens_q, cu_seqlens_k = segments.keys();
  if (has_window(request)) keys_before = request.window - 1, keys_after = 0;
  // Segments may be as long as a sample. For one query, ATen would take segments for samples of one token.
  const int64_t longest = request.packed.defined() ? request.packed.length : request.longest_segment;
  const int64_t longest_q =
      longest > 0 || segments.defined() ? std::max<int64_t>(longest > 0 ? longest : queries, 2) : queries;
  const int64_t longest_k = longest > 0 ? longest_q : keys;
  const at::Tensor y = std::get<0>(at::_flash_attention_forward(
      arranged(request.q_SBND), arranged(request.k_SBGD), arranged(request.v_SBGD), cu_seqlens_q,
      cu_seqlens_k, longest_q, longest_k, 0.0, is_causal(request), /*return_debug_mask=*/false, request.scale,
      keys_before, keys_after));
  const at::Tensor y_BSND = segments.defined() ? y.unflatten(0, {batch, queries}) : y;
  return y_BSND.transpose(0, 1).flatten(2);
}

bool math_supports(const AttentionRequest&) {
  return true;
}

struct Backend {
  const char* name;
  bool (*supports)(const AttentionRequest&);
  at::Tensor (*run)(const AttentionRequest&);
  bool packs = false;  // costs of packed rows are those of their samples
};

constexpr std::array<Backend, 6> backends = {{{"flash-cpu", flash_cpu_supports, flash_cpu, /*packs=*/true},
                                              {"cudnn", cudnn_supports, cudnn},
                                              {"flash-varlen", flash_varlen_supports, flash, /*packs=*/true},
                                              {"flash", flash_supports, flash},
                                              {"fused", fused_supports, fused},
                                              {"math", math_supports, math_attention}}};

const Backend& choose(const AttentionRequest& request) {
  const auto* found = std::find_if(backends.begin(), backends.end(),
                                   [&](const Backend& backend) { return backend.supports(request); });
  TERATRON_ASSERT(found != backends.end(), "math supports every request");
  return *found;
}

}  // namespace

// cuDNN's causal mask is aligned top-left, which for Sq != Sk is another mask.
bool cudnn_supports(const AttentionRequest& request) {
  const int64_t queries = request.q_SBND.size(0), width = request.q_SBND.size(3);
  return is_half_on_gpu(request) && has_plain_scores(request) && !request.segments.defined() &&
         !has_window(request) && (!is_causal(request) || queries == request.k_SBGD.size(0)) && queries > 1 &&
         width % 8 == 0 && width <= 128 && !at::globalContext().deterministicAlgorithms();
}

// The kernel's grid has one row of blocks per segment, at most 65,535.
bool flash_supports(const AttentionRequest& request) {
  const int64_t width = request.q_SBND.size(3);
  return is_half_on_gpu(request) && has_plain_scores(request) && width % 8 == 0 && width <= 256 &&
         (!request.segments.defined() || request.segments.cu_seqlens_q.numel() <= 65536);
}

bool has_window(const AttentionRequest& request) {
  return is_causal(request) && request.window > 0 && request.window < request.k_SBGD.size(0);
}

at::Tensor heads_first(const at::Tensor& x_SBND) {
  return x_SBND.permute({1, 2, 0, 3});
}

at::Tensor merge_heads(const at::Tensor& y_BNSD) {
  return y_BNSD.permute({2, 0, 1, 3}).reshape({y_BNSD.size(2), y_BNSD.size(0), -1});
}

at::Tensor repeat_groups(const at::Tensor& x_BGSD, int64_t heads) {
  const int64_t groups = x_BGSD.size(1);
  return groups == heads ? x_BGSD : x_BGSD.repeat_interleave(heads / groups, 1);
}

QueryKeyValue empty_gradients(const QueryKeyValue& qkv) {
  const int64_t groups = qkv.k_SBGD.size(2);
  const at::Tensor whole = packed_qkv({qkv.q_SBND.unflatten(2, {groups, -1}), qkv.k_SBGD, qkv.v_SBGD});
  if (whole.defined()) {
    const QkvParts parts = unpack_qkv(at::empty_like(whole));
    return {parts.q.flatten(2, 3), parts.k, parts.v};
  }
  return {at::empty_like(qkv.q_SBND), at::empty_like(qkv.k_SBGD), at::empty_like(qkv.v_SBGD)};
}

at::Tensor upcast_for_gemm(const at::Tensor& x, int64_t queries) {
  constexpr int64_t many = 8;
  return queries >= many ? cpu::upcast_if_emulated(x) : x;
}

at::Tensor attention(const AttentionRequest& request) {
  const Backend& backend = choose(request);
  if (!request.packed.defined() || backend.packs) return backend.run(request);
  // Masks of dropout number the keys of a sample, and stored scores would be those of all samples together.
  AttentionRequest rows = request;
  rows.q_SBND = with_padding(request.q_SBND, request.packed);
  rows.k_SBGD = with_padding(request.k_SBGD, request.packed);
  rows.v_SBGD = with_padding(request.v_SBGD, request.packed);
  rows.segments = request.packed.padded;
  rows.packed = {};
  rows.query_rows_S = at::Tensor();
  return without_padding(choose(rows).run(rows), request.packed);
}

std::string attention_backend(const AttentionRequest& request) {
  return choose(request).name;
}

}  // namespace teratron
