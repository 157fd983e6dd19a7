#include "teratron/nn/attention/segments.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

Segments segments_of_starts(const at::Tensor& segment_start_BS) {
  if (!segment_start_BS.defined()) return {};
  const int64_t tokens = segment_start_BS.numel();
  const at::Tensor position_S = at::arange(segment_start_BS.size(1), segment_start_BS.options());
  const at::Tensor token_T = at::arange(tokens, segment_start_BS.options());
  const at::Tensor is_first_T = segment_start_BS.eq(position_S).flatten();
  const at::Tensor first_T = std::get<0>(at::where(is_first_T, token_T, tokens).sort());
  return {.cu_seqlens_q = at::constant_pad_nd(first_T.to(at::kInt), {0, 1}, tokens)};
}

KeyRange visible_keys(const Segments& segments, const SegmentedShape& shape, bool causal) {
  const at::Tensor& cu_q = segments.cu_seqlens_q;
  const at::Tensor& cu_k = segments.keys();
  TERATRON_ASSERT(cu_q.scalar_type() == at::kInt && cu_k.scalar_type() == at::kInt && cu_q.dim() == 1 &&
                  cu_k.sizes() == cu_q.sizes());
  const at::Tensor token_T = at::arange(shape.batch * shape.queries, cu_q.options());
  // The last bound at or before the token, so that empty segments are skipped.
  const at::Tensor next_T = at::searchsorted(cu_q, token_T, /*out_int32=*/true, /*right=*/true);
  const at::Tensor sample_T = at::floor_divide(token_T, shape.queries) * shape.keys;
  const at::Tensor begin_T = cu_k.index_select(0, next_T - 1) - sample_T;
  at::Tensor end_T = cu_k.index_select(0, next_T) - sample_T;
  if (causal) end_T = end_T + (token_T + 1 - cu_q.index_select(0, next_T));
  const auto rows = {shape.batch, shape.queries};
  return {begin_T.view(rows), end_T.view(rows)};
}

}  // namespace teratron
