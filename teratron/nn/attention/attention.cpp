#include "teratron/nn/attention/attention.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/kernels/gemm/gemm_cpu.h"
#include "teratron/nn/autograd.h"
#include "teratron/nn/qkv.h"
#include "teratron/nn/recompute.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor heads_first(const at::Tensor& x_SBND) {
  return x_SBND.permute({1, 2, 0, 3});  // [B, N, S, D]
}

// [B, N, S, D] -> [S, B, N * D]
at::Tensor merge_heads(const at::Tensor& y_BNSD) {
  return y_BNSD.permute({2, 0, 1, 3}).reshape({y_BNSD.size(2), y_BNSD.size(0), -1});
}

// Keys or values repeated for each query head of their group; x itself if groups have one head.
at::Tensor repeat_groups(const at::Tensor& x_BGSD, int64_t heads) {
  const int64_t groups = x_BGSD.size(1);
  return groups == heads ? x_BGSD : x_BGSD.repeat_interleave(heads / groups, 1);
}

bool is_causal(const AttentionRequest& request) {
  return request.mask == Mask::causal;
}

// Whether the window hides any key.
bool has_window(const AttentionRequest& request) {
  return is_causal(request) && request.window > 0 && request.window < request.k_SBGD.size(0);
}

// No segments, dropout or ALiBi, which no fused backend supports.
bool has_plain_mask(const AttentionRequest& request) {
  return !request.segments.defined() && request.dropout == 0.0 && !request.alibi_slopes.defined();
}

// Causal masks of fused backends are aligned top-left, which for Sq != Sk is another mask.
bool causal_is_square(const AttentionRequest& request) {
  return !is_causal(request) || request.q_SBND.size(0) == request.k_SBGD.size(0) ||
         request.q_SBND.size(0) == 1;
}

bool needs_causal_mask(const AttentionRequest& request) {
  return is_causal(request) && request.q_SBND.size(0) > 1;
}

bool is_half_on_gpu(const AttentionRequest& request) {
  const at::ScalarType dtype = request.q_SBND.scalar_type();
  return request.q_SBND.is_cuda() && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

bool flash_cpu_supports(const AttentionRequest& request) {
  return request.q_SBND.is_cpu() && has_plain_mask(request) && !has_window(request) &&
         causal_is_square(request);
}

// With many queries attention is bound by GEMMs, which some CPUs emulate in half precision: use f32, also for
// backward. With few queries it is bound by reading keys and values.
at::Tensor upcast_for_gemm(const at::Tensor& x, int64_t queries) {
  constexpr int64_t many = 8;
  return queries >= many ? cpu::upcast_if_emulated(x) : x;
}

at::Tensor flash_cpu(const AttentionRequest& request) {
  const int64_t queries = request.q_SBND.size(0);
  const at::Tensor q = upcast_for_gemm(heads_first(request.q_SBND), queries);
  const at::Tensor k = repeat_groups(upcast_for_gemm(heads_first(request.k_SBGD), queries), q.size(1));
  const at::Tensor v = repeat_groups(upcast_for_gemm(heads_first(request.v_SBGD), queries), q.size(1));
  const at::Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, 0.0, needs_causal_mask(request), std::nullopt, request.scale));
  return merge_heads(out.to(request.q_SBND.scalar_type()));
}

bool cudnn_supports(const AttentionRequest& request) {
  return is_half_on_gpu(request) && has_plain_mask(request) && !has_window(request) &&
         causal_is_square(request) && request.q_SBND.size(0) > 1 && request.q_SBND.size(3) % 8 == 0 &&
         request.q_SBND.size(3) <= 128 && !at::globalContext().deterministicAlgorithms();
}

AttentionForward cudnn_forward(const QueryKeyValue& qkv, const AttentionOptions& options, bool for_backward) {
  const at::Tensor q = heads_first(qkv.q_SBND), k = heads_first(qkv.k_SBGD), v = heads_first(qkv.v_SBGD);
  const auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, for_backward, 0.0,
                                                              options.causal, false, options.scale);
  return {q, k, v, std::get<0>(result), std::get<1>(result)};
}

// Gradients have the strides of q, k and v; they are views of a packed projection if these are.
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
    const QueryKeyValue d = empty_like(qkv);
    cudnn_attention_backward(
        {heads_first(qkv.q_SBND), heads_first(qkv.k_SBGD), heads_first(qkv.v_SBGD), saved[3], saved[4]},
        heads_first(dy_SBND),
        {context->saved_data["scale"].toDouble(), context->saved_data["causal"].toBool()},
        {heads_first(d.q_SBND), heads_first(d.k_SBGD), heads_first(d.v_SBGD)});
    return {d.q_SBND, d.k_SBGD, d.v_SBGD, at::Tensor()};
  }

  static QueryKeyValue empty_like(const QueryKeyValue& qkv) {
    const int64_t groups = qkv.k_SBGD.size(2);
    const at::Tensor whole = packed_qkv({qkv.q_SBND.unflatten(2, {groups, -1}), qkv.k_SBGD, qkv.v_SBGD});
    if (whole.defined()) {
      const QkvParts parts = unpack_qkv(at::empty_like(whole));
      return {parts.q.flatten(2, 3), parts.k, parts.v};
    }
    return {at::empty_like(qkv.q_SBND), at::empty_like(qkv.k_SBGD), at::empty_like(qkv.v_SBGD)};
  }
};

at::Tensor cudnn(const AttentionRequest& request) {
  const AttentionOptions options{.scale = request.scale, .causal = needs_causal_mask(request)};
  if (!request.q_SBND.requires_grad()) {
    return merge_heads(
        cudnn_forward({request.q_SBND, request.k_SBGD, request.v_SBGD}, options, false).y_BNSD);
  }
  return CudnnAttention::apply(request.q_SBND, request.k_SBGD, request.v_SBGD, options);
}

bool flash_supports(const AttentionRequest& request) {
  return is_half_on_gpu(request) && has_plain_mask(request) && !has_window(request) &&
         causal_is_square(request) && request.q_SBND.size(3) % 8 == 0 && request.q_SBND.size(3) <= 256;
}

at::Tensor flash(const AttentionRequest& request) {
  const at::Tensor q = heads_first(request.q_SBND);
  const at::Tensor k = repeat_groups(heads_first(request.k_SBGD), q.size(1));
  const at::Tensor v = repeat_groups(heads_first(request.v_SBGD), q.size(1));
  return merge_heads(std::get<0>(at::_scaled_dot_product_flash_attention(
      q, k, v, 0.0, needs_causal_mask(request), false, request.scale)));
}

bool flash_window_supports(const AttentionRequest& request) {
  return is_half_on_gpu(request) && has_plain_mask(request) && has_window(request) &&
         causal_is_square(request) && request.q_SBND.size(0) > 1 && request.q_SBND.size(3) % 8 == 0 &&
         request.q_SBND.size(3) <= 256;
}

// Unlike scaled_dot_product_attention, this op has a window. [B, S, N, D]; grouped heads are not repeated.
at::Tensor flash_window(const AttentionRequest& request) {
  const at::Tensor y_BSND = std::get<0>(at::_flash_attention_forward(
      request.q_SBND.transpose(0, 1), request.k_SBGD.transpose(0, 1), request.v_SBGD.transpose(0, 1),
      std::nullopt, std::nullopt, request.q_SBND.size(0), request.k_SBGD.size(0), 0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, request.scale, request.window - 1, 0));
  return y_BSND.transpose(0, 1).flatten(2);
}

// Scaled masked softmax with dropout; saves the probabilities.
struct Softmax : torch::autograd::Function<Softmax> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const SoftmaxOptions& options) {
    const SoftmaxOutput output = softmax_forward(scores, options);
    context->save_for_backward({output.probabilities, options.dropout.where.rows});
    context->saved_data["scale"] = options.scale;
    save_dropout(context, options.dropout);
    return output.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const SoftmaxOptions options{.scale = context->saved_data["scale"].toDouble(),
                                 .dropout = saved_dropout(context, saved[1])};
    return {softmax_backward(gradients[0].contiguous(), saved[0], options), at::Tensor()};
  }
};

// Global ids of the score rows (sample, head, query), counted through the run.
at::Tensor score_row_ids(const AttentionRequest& request) {
  const at::Tensor& q = request.q_SBND;
  const at::Tensor& sample_ids_B = request.dropout_key.sample_ids_B;
  TERATRON_ASSERT(sample_ids_B.defined() && sample_ids_B.numel() == q.size(1), "dropout without sample ids");
  const at::TensorOptions i64 = sample_ids_B.options();
  const int64_t queries = q.size(0), keys = request.k_SBGD.size(0);
  const int64_t length = request.sequence_length > 0 ? request.sequence_length
                         : is_causal(request)        ? keys
                                                     : queries;
  const at::Tensor row_S = request.query_rows_S.defined()
                               ? request.query_rows_S
                               : at::arange(queries, i64) + (is_causal(request) ? keys - queries : 0);
  const at::Tensor head_N = at::arange(q.size(2), i64) + request.head_offset;
  const at::Tensor sample_head = (sample_ids_B * request.total_heads).unsqueeze(1) + head_N;
  return (sample_head * length).unsqueeze(2).add(row_S).reshape(-1);
}

at::Tensor shared_score_row_ids(const AttentionRequest& request) {
  if (!request.dropout_row_ids) return score_row_ids(request);
  at::Tensor& rows = request.dropout_row_ids->scores;
  if (!rows.defined()) rows = score_row_ids(request);
  TERATRON_ASSERT(rows.numel() == request.q_SBND.numel() / request.q_SBND.size(3));
  return rows;
}

// Without segments: [1, Sq].
KeyRange key_range(const AttentionRequest& request) {
  const int64_t batch = request.q_SBND.size(1), queries = request.q_SBND.size(0),
                keys = request.k_SBGD.size(0);
  KeyRange range;
  if (request.segments.defined()) {
    range = visible_keys(request.segments, {batch, queries, keys}, is_causal(request));
  } else {
    const at::TensorOptions i32 = request.q_SBND.options().dtype(at::kInt).requires_grad(false);
    range.begin_BS = at::zeros({1, queries}, i32);
    range.end_BS = at::arange(keys - queries + 1, keys + 1, i32).unsqueeze(0);
  }
  if (has_window(request)) range.begin_BS = at::maximum(range.begin_BS, range.end_BS - request.window);
  return range;
}

// Key lengths that differ from query lengths shift each segment's diagonal.
bool has_one_diagonal(const AttentionRequest& request) {
  return !request.segments.cu_seqlens_k.defined();
}

// True for keys that segments and the window hide, and for those that a causal mask with one diagonal does not:
// [B or 1, 1, Sq, Sk].
at::Tensor hidden_keys(const AttentionRequest& request) {
  if (!request.segments.defined() && !has_window(request)) return {};
  const KeyRange range = key_range(request);
  const at::Tensor key_S = at::arange(request.k_SBGD.size(0), range.begin_BS.options());
  at::Tensor hidden_BSS = key_S.lt(range.begin_BS.unsqueeze(-1));
  if (!is_causal(request) || !has_one_diagonal(request)) {
    hidden_BSS = hidden_BSS.logical_or_(key_S.ge(range.end_BS.unsqueeze(-1)));
  }
  return hidden_BSS.unsqueeze(1);
}

// factor * Q K^T; half precision rounds after the factor.
at::Tensor scaled_scores(const at::Tensor& q_BNSD, const at::Tensor& k_BNSD, double factor) {
  const int64_t queries = q_BNSD.size(2);
  const at::Tensor q = upcast_for_gemm(q_BNSD.flatten(0, 1), queries),
                   k = upcast_for_gemm(k_BNSD.flatten(0, 1), queries);
  const at::Tensor unused = at::empty({1, 1, 1}, q.options().requires_grad(false));
  const at::Tensor scores = at::baddbmm(unused, q, k.transpose(1, 2), /*beta=*/0.0, /*alpha=*/factor);
  return scores.to(q_BNSD.scalar_type()).unflatten(0, {q_BNSD.size(0), q_BNSD.size(1)});
}

bool math_supports(const AttentionRequest&) {
  return true;
}

at::Tensor unfused_attention(const AttentionRequest& request) {
  const at::Tensor q = heads_first(request.q_SBND);
  const at::Tensor k = repeat_groups(heads_first(request.k_SBGD), q.size(1));
  const at::Tensor v = repeat_groups(heads_first(request.v_SBGD), q.size(1));
  const SoftmaxOptions options{
      .scale = request.score_divisor,
      .causal = is_causal(request) && has_one_diagonal(request),
      .mask = hidden_keys(request),
      .slopes = request.alibi_slopes,
      .dropout = {.p = request.dropout,
                  .key = {request.dropout_key.seed, request.dropout_key.site},
                  .where = {.rows = request.dropout > 0.0 ? shared_score_row_ids(request) : at::Tensor()}}};
  const at::Tensor scores = scaled_scores(q, k, request.scale / request.score_divisor);
  const at::Tensor weights = Softmax::apply(scores, options);
  const int64_t queries = q.size(2);
  return merge_heads(
      at::matmul(upcast_for_gemm(weights, queries), upcast_for_gemm(v, queries)).to(v.scalar_type()));
}

at::Tensor math(const AttentionRequest& request) {
  if (!request.recompute) return unfused_attention(request);
  AttentionRequest rest = request;
  rest.q_SBND = rest.k_SBGD = rest.v_SBGD = at::Tensor();
  const RecomputeFunction function = [rest](at::TensorList inputs) {
    AttentionRequest whole = rest;
    whole.q_SBND = inputs[0];
    whole.k_SBGD = inputs[1];
    whole.v_SBGD = inputs[2];
    return unfused_attention(whole);
  };
  return recompute(function, {request.q_SBND, request.k_SBGD, request.v_SBGD}, {});
}

struct Backend {
  const char* name;
  bool (*supports)(const AttentionRequest&);
  at::Tensor (*run)(const AttentionRequest&);
};

constexpr std::array<Backend, 5> backends = {{{"flash-cpu", flash_cpu_supports, flash_cpu},
                                              {"cudnn", cudnn_supports, cudnn},
                                              {"flash", flash_supports, flash},
                                              {"flash-window", flash_window_supports, flash_window},
                                              {"math", math_supports, math}}};

const Backend& choose(const AttentionRequest& request) {
  const auto* found = std::find_if(backends.begin(), backends.end(),
                                   [&](const Backend& backend) { return backend.supports(request); });
  TERATRON_ASSERT(found != backends.end(), "math supports every request");
  return *found;
}

}  // namespace

at::Tensor attention(const AttentionRequest& request) {
  return choose(request).run(request);
}

std::string attention_backend(const AttentionRequest& request) {
  return choose(request).name;
}

}  // namespace teratron
