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
  return request.dropout == 0.0 && !request.alibi_slopes.defined() && !request.distance_bias.defined();
}

// Whether attention to parts of the keys can be merged (partial_attention.h).
bool can_merge(const AttentionRequest& request) {
  return is_independent_of_positions(request) && has_one_width(request) && request.window == 0 &&
         request.chunk == 0 && request.softcap == 0.0;
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

// Tokens [first, first + count) of every sample in whole samples' segments.
at::Tensor bounds_of_run(const at::Tensor& cu_seqlens, int64_t length, int64_t first, int64_t count) {
  const at::Tensor sample = at::floor_divide(cu_seqlens, length), token = cu_seqlens - sample * length;
  return (sample * count + (token - first).clamp(0, count)).to(at::kInt).contiguous();
}

// Two segments of every sample: the keys up to `visible`, and the others.
at::Tensor bounds_of_visible(int64_t samples, int64_t length, int64_t visible, const at::Tensor& like) {
  const at::TensorOptions i32 = like.options().dtype(at::kInt).requires_grad(false);
  const at::Tensor first_B1 = (at::arange(samples, i32) * length).unsqueeze(1);
  return at::constant_pad_nd(at::cat({first_B1, first_B1 + visible}, 1).flatten(), {0, 1}, samples * length)
      .to(at::kInt);
}

// Biases by distance need queries that follow each other, as in a chunk. All keys are passed, since masks of
// dropout number them.
at::Tensor attention_by_distance(const AttentionRequest& request, const ContextParallel& context) {
  TERATRON_ASSERT(context.cut->whole_samples, "relative positions of documents on context-parallel ranks");
  const int64_t chunk = request.q_SBND.size(0) / 2, keys = request.k_SBGD.size(0);
  const int64_t ranks = context.group.size, rank = context.group.rank, samples = request.q_SBND.size(1);
  std::vector<at::Tensor> outputs;
  for (const int64_t i : {int64_t{0}, int64_t{1}}) {
    const int64_t first = (i == 0 ? rank : 2 * ranks - 1 - rank) * chunk;
    AttentionRequest part = request;
    part.q_SBND = request.q_SBND.narrow(0, i * chunk, chunk);
    part.query_rows_S = request.query_rows_S.narrow(0, i * chunk, chunk);
    part.dropout_row_ids = nullptr;
    part.distance_bias = request.distance_bias.narrow(1, keys - first - chunk, chunk + keys - 1);
    if (request.mask == Mask::causal) {
      part.segments = {bounds_of_visible(samples, chunk, chunk, part.q_SBND),
                       bounds_of_visible(samples, keys, first + chunk, part.q_SBND)};
    } else if (const at::Tensor& cu = request.segments.cu_seqlens_q; cu.defined()) {
      part.segments = {bounds_of_run(cu, keys, first, chunk), cu};
    }
    outputs.push_back(attention(part));
  }
  return at::cat(outputs);
}

// Each query sees every key of its segment.
at::Tensor encoding_over_gathered(const AttentionRequest& request, const ContextParallel& context) {
  const ContextCut& cut = *context.cut;
  const Segments& given = request.segments;
  AttentionRequest own = request;
  const int64_t rank = context.group.rank;
  if (!cut.whole_samples) {
    own.segments = {cut.parts[static_cast<size_t>(rank)].cu_seqlens, cut.cu_documents};
  } else if (given.defined()) {
    own.segments = {bounds_on_rank(given.cu_seqlens_q, request.k_SBGD.size(0), context.group, rank),
                    given.cu_seqlens_q};
  }
  return attention(own);
}

at::Tensor attention_to_gathered(const AttentionRequest& request, const ContextParallel& context) {
  const ContextCut& cut = *context.cut;
  AttentionRequest whole = request;
  whole.k_SBGD = gather_tokens(request.k_SBGD, context);
  whole.v_SBGD = gather_tokens(request.v_SBGD, context);
  whole.query_rows_S = cut.rows_SB;
  whole.sequence_length = whole.k_SBGD.size(0);
  if (request.distance_bias.defined()) return attention_by_distance(whole, context);
  if (request.mask == Mask::full) return encoding_over_gathered(whole, context);
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
  if (request.distance_bias.defined()) heads.distance_bias = request.distance_bias.narrow(0, first, count);
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
  TERATRON_ASSERT(context.cut && !request.packed.defined(), "context parallelism of packed rows");
  if (comm == ContextParallelComm::p2p && pads_values(request) && is_independent_of_positions(request)) {
    return with_padded_values(request, [&](const AttentionRequest& padded) {
      return context_parallel_attention(padded, context, comm);
    });
  }
  if (comm == ContextParallelComm::a2a) return attention_of_heads(request, context, request.segments);
  AttentionRequest own = request;
  if (request.mask == Mask::causal) own.segments = {};  // the cut's
  if (comm == ContextParallelComm::all_gather || !can_merge(request))
    return attention_to_gathered(own, context);
  return ring_attention(own, context);
}

}  // namespace teratron
