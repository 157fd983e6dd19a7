// Attention over keys and values in pages (attention_state.h), for the rows of a generation.
#pragma once

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/attention_state.h"
#include "teratron/nn/layer.h"

namespace teratron {

/// request: queries, keys and values [T, 1, ...] of the new tokens, at the context's positions; distance_bias
/// for the longest sequence, where a kernel decodes for all positions of the table. Adds the keys and values
/// to the pages; -> [T, 1, N * D]. Not differentiable.
at::Tensor paged_attention(const AttentionRequest& request, const KeyValuePages& pages,
                           const LayerContext& context);

/// Stores the keys and values [S, 1, G, D] of the source that the micro-batch encodes.
void store_source(const at::Tensor& k_SBGD, const at::Tensor& v_SBGD, const KeyValuePages& pages,
                  const LayerContext& context);
/// Queries [T, 1, N, D] of the request, each over the stored source of its row; -> [T, 1, N * D].
at::Tensor paged_cross_attention(const AttentionRequest& request, const KeyValuePages& pages,
                                 const LayerContext& context);

/// Whether so many tokens are all rows that one kernel decodes.
bool decodes_all(const LayerContext& context, int64_t tokens);
/// paged_attention() of such tokens, with queries and keys before RoPE (null: none), which is applied within
/// the kernel where it can be. request: all but queries, keys and values.
at::Tensor paged_decode_attention(const QkvParts& qkv, const AttentionRequest& request,
                                  const KeyValuePages& pages, const LayerContext& context,
                                  const RotaryEmbedding* rotary);

}  // namespace teratron
