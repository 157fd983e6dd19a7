// Attention over keys and values in pages (paged.h).
#pragma once

#include "teratron/nn/attention/attention.h"
#include "teratron/nn/attention/paged.h"

namespace teratron {

/// request: queries, keys and values [T, 1, ...] of the new tokens, at these positions of their sequences.
/// Adds the keys and values to the pages; -> [T, 1, N * D]. Not differentiable.
at::Tensor paged_attention(const AttentionRequest& request, PagedKeyValues& paged,
                           const at::Tensor& positions_SB);

}  // namespace teratron
