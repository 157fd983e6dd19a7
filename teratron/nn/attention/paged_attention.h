// Attention over keys and values in pages (paged.h).
#pragma once

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/paged.h"

namespace teratron {

/// request: queries, keys and values [T, 1, ...] of the new tokens, at these positions of their sequences;
/// distance_bias for the longest of these, as in LayerContext; where a kernel decodes, for all positions of
/// the table.
/// Adds the keys and values to the pages; -> [T, 1, N * D]. Not differentiable.
at::Tensor paged_attention(const AttentionRequest& request, PagedKeyValues& paged,
                           const at::Tensor& positions_SB);

/// Stores the keys and values [S, 1, G, D] of the source that the micro-batch encodes.
void store_source(const at::Tensor& k_SBGD, const at::Tensor& v_SBGD, PagedKeyValues& paged);
/// Queries [T, 1, N, D] of the request, each over the stored source of its row; -> [T, 1, N * D].
at::Tensor paged_cross_attention(const AttentionRequest& request, const PagedKeyValues& paged);

/// Whether so many tokens are all rows of PagedBatch that one kernel decodes.
bool decodes_all(const PagedKeyValues& paged, int64_t tokens);
/// The same for such tokens: queries and keys are not rotated yet, and `rope` (null: none) is applied within
/// the kernel where it can be. request: all but queries, keys and values.
at::Tensor paged_decode_attention(const QkvParts& qkv, const AttentionRequest& request, PagedKeyValues& paged,
                                  const QkvRotation* rope, const at::Tensor& positions_SB);

}  // namespace teratron
