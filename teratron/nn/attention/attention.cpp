#include "teratron/nn/attention/attention.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/fused_attention.h"
#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/attention/sinks.h"
#include "teratron/nn/attention/split_qkv.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

at::Tensor run(AttentionBackend backend, const AttentionRequest& request) {
  switch (backend) {
    case AttentionBackend::flash_cpu:
      return flash_cpu(request);
    case AttentionBackend::cudnn:
      return cudnn(request);
    case AttentionBackend::flash_varlen:
    case AttentionBackend::flash:
      return flash(request);
    case AttentionBackend::fused:
      return fused(request);
    case AttentionBackend::math:
      break;
  }
  return math_attention(request);
}

AttentionBackend choose(const AttentionRequest& request) {
  return choose_backend(shape_of(request));
}

// The chunks of each segment as segments: all are the same number of tokens but the last ones, which may be
// empty, so that shapes do not depend on the segments.
AttentionRequest in_chunks(const AttentionRequest& request) {
  TERATRON_ASSERT(is_causal(request) && !request.packed.defined(), "chunks of other than causal attention");
  AttentionRequest chunks = request;
  chunks.chunk = 0;
  const int64_t queries = request.q_SBND.size(0), keys = request.k_SBGD.size(0);
  const Segments& given = request.segments;
  if (!given.defined() && keys <= request.chunk) return chunks;
  const at::TensorOptions i32 = request.q_SBND.options().dtype(at::kInt).requires_grad(false);
  const auto samples = [&](int64_t length) { return at::arange(request.q_SBND.size(1) + 1, i32) * length; };
  const at::Tensor cu_q = given.defined() ? given.cu_seqlens_q : samples(queries);
  const at::Tensor cu_k = given.defined() ? given.keys() : samples(keys);
  const auto lengths = [](const at::Tensor& cu) { return cu.slice(0, 1) - cu.slice(0, 0, -1); };
  const at::Tensor start_J = at::arange((keys + request.chunk - 1) / request.chunk, i32) * request.chunk;
  const auto bounds = [&](const at::Tensor& cu, const at::Tensor& start_IJ) {
    const at::Tensor within_IJ = at::minimum(start_IJ.clamp_min(0), lengths(cu).unsqueeze(1));
    const at::Tensor bound_IJ = within_IJ + cu.slice(0, 0, -1).unsqueeze(1);
    return at::cat({bound_IJ.flatten(), cu.slice(0, -1)}).contiguous();
  };
  // Queries are the last tokens of the keys; a segment's first chunk begins with its first query.
  const at::Tensor before_I = (lengths(cu_k) - lengths(cu_q)).clamp_min(0);
  chunks.segments = {bounds(cu_q, start_J - before_I.unsqueeze(1)), bounds(cu_k, start_J.unsqueeze(0))};
  return chunks;
}

// Packed rows cost what their samples do.
bool packs(AttentionBackend backend) {
  return backend == AttentionBackend::flash_cpu || backend == AttentionBackend::flash_varlen;
}

}  // namespace

AttentionShape shape_of(const AttentionRequest& request) {
  const at::Tensor &q = request.q_SBND, &k = request.k_SBGD;
  const at::Tensor& cu_seqlens = request.segments.cu_seqlens_q;
  return {.gpu = q.is_cuda(),
          .dtype = dtype_of(q),
          .queries = q.size(0),
          .keys = k.size(0),
          .width = q.size(3),
          .one_width = has_one_width(request),
          .causal = is_causal(request),
          .window = request.window,
          .segments = cu_seqlens.defined() ? std::optional(cu_seqlens.numel() - 1) : std::nullopt,
          .scale = request.scale,
          .dropout = request.dropout,
          .biased = request.alibi_slopes.defined() || request.distance_bias.defined(),
          .capped = request.softcap > 0.0,
          .fits_fused_kernel = fused_attention_supports({q, k, request.v_SBGD, request.distance_bias}),
          .deterministic = at::globalContext().deterministicAlgorithms()};
}

bool has_window(const AttentionRequest& request) {
  return has_window(is_causal(request), request.window, request.k_SBGD.size(0));
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

bool pads_values(const AttentionRequest& request) {
  if (request.v_SBGD.size(3) >= request.q_SBND.size(3)) return false;
  AttentionShape shape = shape_of(request);
  shape.one_width = true;
  return choose_backend(shape) != AttentionBackend::math;
}

at::Tensor with_padded_values(const AttentionRequest& request,
                              c10::function_ref<at::Tensor(const AttentionRequest&)> attend) {
  const int64_t heads = request.q_SBND.size(2), width = request.v_SBGD.size(3);
  AttentionRequest padded = request;
  padded.v_SBGD = at::constant_pad_nd(request.v_SBGD, {0, request.q_SBND.size(3) - width});
  return attend(padded).unflatten(2, {heads, -1}).narrow(3, 0, width).flatten(2);
}

at::Tensor attention(const AttentionRequest& request) {
  if (request.chunk > 0) return attention(in_chunks(request));
  if (request.sinks_N.defined()) return attention_with_sinks(request);
  if (pads_values(request)) return with_padded_values(request, attention);
  const AttentionBackend backend = choose(request);
  if (!request.packed.defined() || packs(backend)) return run(backend, request);
  // Masks of dropout number the keys of a sample, and stored scores would be those of all samples together.
  AttentionRequest rows = request;
  rows.q_SBND = with_padding(request.q_SBND, request.packed);
  rows.k_SBGD = with_padding(request.k_SBGD, request.packed);
  rows.v_SBGD = with_padding(request.v_SBGD, request.packed);
  rows.segments = request.packed.padded;
  rows.packed = {};
  rows.query_rows_S = at::Tensor();
  return without_padding(run(choose(rows), rows), request.packed);
}

std::string attention_backend(const AttentionRequest& request) {
  return std::string(name_of(choose(request)));
}

}  // namespace teratron
