// What the backends of attention.cpp share; layers include attention.h.
#pragma once

#include <c10/util/FunctionRef.h>

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/choose_backend.h"
#include "teratron/nn/attention/split_qkv.h"

namespace teratron {

inline bool is_causal(const AttentionRequest& request) {
  return request.mask == Mask::causal;
}

/// Whether a head's queries, keys and values have as many channels.
inline bool has_one_width(const AttentionRequest& request) {
  return request.q_SBND.size(3) == request.v_SBGD.size(3);
}

/// Whether a backend that needs values as wide as keys takes the request with zeros beside narrower values.
bool pads_values(const AttentionRequest& request);
/// [Sq, B, N D] of attend(), an attention, without what these zeros give. Differentiable.
at::Tensor with_padded_values(const AttentionRequest& request,
                              c10::function_ref<at::Tensor(const AttentionRequest&)> attend);

/// Whether the window hides any key.
bool has_window(const AttentionRequest& request);

/// [S, B, N, D] as [B, N, S, D].
at::Tensor heads_first(const at::Tensor& x_SBND);
/// [B, N, S, D] as [S, B, N * D].
at::Tensor merge_heads(const at::Tensor& y_BNSD);
/// Keys or values repeated for each query head of their group; x itself if groups have one head.
at::Tensor repeat_groups(const at::Tensor& x_BGSD, int64_t heads);
/// x, or x in f32 where that is faster: attention of many queries is bound by GEMMs, which some CPUs emulate
/// in half precision; that of few by reading keys and values.
at::Tensor upcast_for_gemm(const at::Tensor& x, int64_t queries);

/// True for keys that a query does not see, [B or 1, 1, Sq, Sk]; undefined: it sees all.
at::Tensor hidden_keys(const AttentionRequest& request);
/// Global ids of the score rows (sample, head, query) of a request with dropout, counted through the run: i64
/// [B N Sq]. Computed once for layers that share dropout_row_ids.
at::Tensor score_row_ids(const AttentionRequest& request);
/// Tensors for gradients, with the strides of q, k and v; views of a packed projection if these are.
QueryKeyValue empty_gradients(const QueryKeyValue& qkv);

/// What of a request decides which backend runs.
AttentionShape shape_of(const AttentionRequest& request);

/// ATen's flash attention on the CPU: any mask, window and segments, in memory linear in the sequence length.
at::Tensor flash_cpu(const AttentionRequest& request);
/// Flash attention without autograd, with the log-sum-exp [B, N, Sq] of the scores, -inf for queries without
/// keys; and gradients from y and log-sum-exp over all keys, of which the request may have a part.
struct FlashCpuOutput {
  at::Tensor y_SBND, logsumexp_BNS;
};
FlashCpuOutput flash_cpu_forward(const AttentionRequest& request);
QueryKeyValue flash_cpu_backward(const AttentionRequest& request, const FlashCpuOutput& output,
                                 const at::Tensor& dy_SBND);
/// Our own kernel, for what no library's supports: dropout with the layout-independent mask, and biases.
at::Tensor fused(const AttentionRequest& request);
/// GEMM, softmax, GEMM: everything, with stored scores.
at::Tensor math_attention(const AttentionRequest& request);

}  // namespace teratron
