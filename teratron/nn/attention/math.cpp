#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/recompute.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

// Keys [begin, end) of its sample that each query sees, i32 [B or 1, Sq].
struct KeyRange {
  at::Tensor begin_BS, end_BS;
};

// Computed on the device.
KeyRange segment_range(const AttentionRequest& request) {
  const at::Tensor &cu_q = request.segments.cu_seqlens_q, &cu_k = request.segments.keys();
  TERATRON_ASSERT(cu_q.scalar_type() == at::kInt && cu_k.scalar_type() == at::kInt && cu_q.dim() == 1 &&
                  cu_k.sizes() == cu_q.sizes());
  const int64_t batch = request.q_SBND.size(1), queries = request.q_SBND.size(0);
  const at::Tensor token_T = at::arange(batch * queries, cu_q.options());
  // The last bound at or before the token, so that empty segments are skipped.
  const at::Tensor next_T = at::searchsorted(cu_q, token_T, /*out_int32=*/true, /*right=*/true);
  const at::Tensor first_key_T = at::floor_divide(token_T, queries) * request.k_SBGD.size(0);
  at::Tensor end_T = cu_k.index_select(0, next_T) - first_key_T;
  // The last query of a segment sees its last key, the query before it one key less, and so on.
  if (is_causal(request)) end_T = end_T + (token_T + 1 - cu_q.index_select(0, next_T));
  return {(cu_k.index_select(0, next_T - 1) - first_key_T).view({batch, queries}),
          end_T.view({batch, queries})};
}

KeyRange sample_range(const AttentionRequest& request) {
  const int64_t queries = request.q_SBND.size(0), keys = request.k_SBGD.size(0);
  const at::TensorOptions i32 = request.q_SBND.options().dtype(at::kInt).requires_grad(false);
  return {at::zeros({1, queries}, i32), at::arange(keys - queries + 1, keys + 1, i32).unsqueeze(0)};
}

// Whether the softmax's own causal mask serves all segments; other key lengths shift each one's diagonal.
bool has_one_diagonal(const AttentionRequest& request) {
  return is_causal(request) && !request.segments.cu_seqlens_k.defined();
}

// True for keys outside of each query's range, of which the end may be left to others: [B or 1, 1, Sq, Sk].
at::Tensor keys_outside(const AttentionRequest& request, bool end) {
  KeyRange range = request.segments.defined() ? segment_range(request) : sample_range(request);
  if (has_window(request)) range.begin_BS = at::maximum(range.begin_BS, range.end_BS - request.window);
  const at::Tensor key_S = at::arange(request.k_SBGD.size(0), range.begin_BS.options());
  at::Tensor hidden_BSS = key_S.lt(range.begin_BS.unsqueeze(-1));
  if (end) hidden_BSS = hidden_BSS.logical_or_(key_S.ge(range.end_BS.unsqueeze(-1)));
  return hidden_BSS.unsqueeze(1);
}

// What the softmax's own causal mask leaves to hide.
at::Tensor hidden_besides_diagonal(const AttentionRequest& request) {
  if (!request.segments.defined() && !has_window(request)) return {};
  return keys_outside(request, /*end=*/!has_one_diagonal(request));
}

// [N, Sq, Sk] of biases by distance: row i is their columns from Sq - 1 - i on.
at::Tensor bias_of_scores(const at::Tensor& distance_bias, int64_t keys) {
  return distance_bias.unfold(1, keys, 1).flip(1);
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

// Half precision rounds after each operation, as in transformers.
at::Tensor soft_capped(const at::Tensor& scores, double cap) {
  return at::tanh(scores / cap) * cap;
}

at::Tensor unfused_attention(const AttentionRequest& request) {
  const at::Tensor q = heads_first(request.q_SBND);
  const at::Tensor k = repeat_groups(heads_first(request.k_SBGD), q.size(1));
  const at::Tensor v = repeat_groups(heads_first(request.v_SBGD), q.size(1));
  const SoftmaxOptions options{
      .scale = request.score_divisor,
      .causal = has_one_diagonal(request),
      .mask = hidden_besides_diagonal(request),
      .slopes = request.alibi_slopes,
      .dropout = {.p = request.dropout,
                  .key = {request.dropout_key.seed, request.dropout_key.site},
                  .where = {.rows = request.dropout > 0.0 ? score_row_ids(request) : at::Tensor()}}};
  at::Tensor scores = scaled_scores(q, k, request.scale / request.score_divisor);
  if (request.softcap > 0.0) scores = soft_capped(scores, request.softcap / request.score_divisor);
  if (request.distance_bias.defined()) {
    const at::Tensor bias_NSS = bias_of_scores(request.distance_bias, k.size(2)) / request.score_divisor;
    scores = (scores + bias_NSS).to(scores.scalar_type());
  }
  const at::Tensor weights = Softmax::apply(scores, options);
  const int64_t queries = q.size(2);
  return merge_heads(
      at::matmul(upcast_for_gemm(weights, queries), upcast_for_gemm(v, queries)).to(v.scalar_type()));
}

at::Tensor new_score_row_ids(const AttentionRequest& request) {
  const at::Tensor& q = request.q_SBND;
  const at::Tensor& sample_ids_B = request.dropout_key.sample_ids_B;
  TERATRON_ASSERT(sample_ids_B.defined() && sample_ids_B.numel() == q.size(1), "dropout without sample ids");
  const at::TensorOptions i64 = sample_ids_B.options();
  const int64_t queries = q.size(0), keys = request.k_SBGD.size(0);
  const int64_t length = request.sequence_length > 0 ? request.sequence_length
                         : is_causal(request)        ? keys
                                                     : queries;
  at::Tensor row_BS = request.query_rows_S.defined()
                          ? request.query_rows_S
                          : at::arange(queries, i64) + (is_causal(request) ? keys - queries : 0);
  if (row_BS.dim() == 2) row_BS = row_BS.t().unsqueeze(1);
  const at::Tensor head_N = at::arange(q.size(2), i64) + request.head_offset;
  const at::Tensor sample_head = (sample_ids_B * request.total_heads).unsqueeze(1) + head_N;
  return (sample_head * length).unsqueeze(2).add(row_BS).reshape(-1);
}

}  // namespace

at::Tensor hidden_keys(const AttentionRequest& request) {
  if (!is_causal(request) && !request.segments.defined()) return {};
  return keys_outside(request, /*end=*/true);
}

at::Tensor score_row_ids(const AttentionRequest& request) {
  if (!request.dropout_row_ids) return new_score_row_ids(request);
  at::Tensor& rows = request.dropout_row_ids->scores;
  if (!rows.defined()) rows = new_score_row_ids(request);
  TERATRON_ASSERT(rows.numel() == request.q_SBND.numel() / request.q_SBND.size(3));
  return rows;
}

at::Tensor math_attention(const AttentionRequest& request) {
  if (!request.recompute) return unfused_attention(request);
  AttentionRequest rest = request;
  rest.q_SBND = rest.k_SBGD = rest.v_SBGD = rest.distance_bias = at::Tensor();
  const RecomputeFunction function = [rest](at::TensorList inputs) {
    AttentionRequest whole = rest;
    whole.q_SBND = inputs[0];
    whole.k_SBGD = inputs[1];
    whole.v_SBGD = inputs[2];
    if (inputs.size() > 3) whole.distance_bias = inputs[3];
    return unfused_attention(whole);
  };
  std::vector<at::Tensor> inputs = {request.q_SBND, request.k_SBGD, request.v_SBGD};
  if (request.distance_bias.defined()) inputs.push_back(request.distance_bias);
  return recompute(function, inputs, {});
}

}  // namespace teratron
