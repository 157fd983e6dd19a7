#include "teratron/nn/attention/context_parallel/context_parallel.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/attention/context_parallel/chunk_attention.h"
#include "teratron/nn/attention/context_parallel/ring_attention.h"

namespace teratron {

namespace {

bool is_independent_of_positions(const AttentionRequest& request) {
  return request.dropout == 0.0 && !request.alibi_slopes.defined();
}

// Whether attention to parts of the keys can be merged (partial_attention.h).
bool can_merge(const AttentionRequest& request) {
  return is_independent_of_positions(request) && has_one_width(request) && request.window == 0 &&
         request.softcap == 0.0;
}

// Queries are those of the first and of the second chunks, each with the keys up to their last one.
at::Tensor attention_of_chunks(const AttentionRequest& request, int64_t rank) {
  const int64_t chunk = request.q_SBND.size(0) / 2, keys = request.k_SBGD.size(0);
  std::vector<at::Tensor> outputs;
  for (const int64_t i : {int64_t{0}, int64_t{1}}) {
    const int64_t visible = i == 0 ? (rank + 1) * chunk : keys - rank * chunk;
    AttentionRequest part = request;
    part.q_SBND = request.q_SBND.narrow(0, i * chunk, chunk);
    part.k_SBGD = request.k_SBGD.narrow(0, 0, visible);
    part.v_SBGD = request.v_SBGD.narrow(0, 0, visible);
    outputs.push_back(attention(part));
  }
  return at::cat(outputs);
}

at::Tensor attention_to_gathered(const AttentionRequest& request, const ContextParallel& context) {
  const ContextCut& cut = *context.cut;
  AttentionRequest whole = request;
  whole.k_SBGD = gather_tokens(request.k_SBGD, context);
  whole.v_SBGD = gather_tokens(request.v_SBGD, context);
  whole.query_rows_S = cut.rows_SB;
  whole.sequence_length = whole.k_SBGD.size(0);
  if (cut.whole_samples && is_independent_of_positions(request)) {
    const int64_t rank = context.group.rank;
    return can_merge(request) ? chunk_attention(whole, rank) : attention_of_chunks(whole, rank);
  }
  // Each query has keys in one of the two, and the output 0 in the other. All keys are passed, since masks of
  // dropout number them.
  whole.segments = cut.first_over_all;
  const at::Tensor first = attention(whole);
  whole.segments = cut.second_over_all;
  return first + attention(whole);
}

at::Tensor attention_of_heads(const AttentionRequest& request, const ContextParallel& context,
                              const Segments& segments) {
  const Group& group = context.group;
  const ContextCut& cut = *context.cut;
  const auto by_heads = [&](const at::Tensor& x_SBND) {
    return permute_tokens(all_to_all(x_SBND, 2, 0, group), cut.order, cut.inverse_order);
  };
  AttentionRequest heads = request;
  heads.q_SBND = by_heads(request.q_SBND);
  heads.k_SBGD = by_heads(request.k_SBGD);
  heads.v_SBGD = by_heads(request.v_SBGD);
  heads.segments = segments;
  const int64_t count = heads.q_SBND.size(2), first = group.rank * count;
  heads.head_offset = request.head_offset + first;
  if (request.alibi_slopes.defined()) heads.alibi_slopes = request.alibi_slopes.narrow(0, first, count);
  if (request.sinks_N.defined()) heads.sinks_N = request.sinks_N.narrow(0, first, count);
  heads.query_rows_S = at::Tensor();
  heads.sequence_length = heads.q_SBND.size(0);
  heads.dropout_row_ids = nullptr;  // those of other heads
  const at::Tensor y_SBND = attention(heads).unflatten(2, {count, -1});
  return all_to_all(permute_tokens(y_SBND, cut.inverse_order, cut.order), 0, 2, group).flatten(2);
}

}  // namespace

at::Tensor context_parallel_attention(const AttentionRequest& request, const ContextParallel& context,
                                      ContextParallelComm comm) {
  TERATRON_ASSERT(context.cut && request.mask == Mask::causal && !request.packed.defined() &&
                      !request.distance_bias.defined(),
                  "context parallelism of other than causal self-attention");
  if (comm == ContextParallelComm::p2p && pads_values(request) && is_independent_of_positions(request)) {
    return with_padded_values(request, [&](const AttentionRequest& padded) {
      return context_parallel_attention(padded, context, comm);
    });
  }
  if (comm == ContextParallelComm::a2a) return attention_of_heads(request, context, request.segments);
  AttentionRequest own = request;
  own.segments = {};
  if (comm == ContextParallelComm::all_gather || !can_merge(request))
    return attention_to_gathered(own, context);
  return ring_attention(own, context);
}

}  // namespace teratron
