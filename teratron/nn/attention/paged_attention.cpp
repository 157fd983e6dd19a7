#include "teratron/nn/attention/paged_attention.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/paged_decode.h"
#include "teratron/nn/relative_position.h"

namespace teratron {

namespace {

void allocate(PagedKeyValues& paged, const at::Tensor& k_SBGD) {
  if (paged.k_TGD.defined()) return;
  const int64_t slots = paged.batch->pages * paged.batch->page_size;
  // Not filled: only slots that were written are read, and memory that is never used stays virtual on CPUs.
  paged.k_TGD = at::empty({slots, k_SBGD.size(2), k_SBGD.size(3)}, k_SBGD.options());
  paged.v_TGD = at::empty_like(paged.k_TGD);
}

// Keys or values of a sequence, [length, 1, G, D].
at::Tensor sequence_of(const at::Tensor& pages_TGD, const PagedTokens& tokens) {
  const at::Tensor x = tokens.first_slot >= 0 ? pages_TGD.narrow(0, tokens.first_slot, tokens.length)
                                              : pages_TGD.index_select(0, tokens.slots_L);
  return x.unsqueeze(1);
}

at::Tensor attend_row(const AttentionRequest& request, const PagedKeyValues& paged, const PagedRow& row) {
  AttentionRequest own = request;
  const auto new_tokens = [&](const at::Tensor& x) { return x.narrow(0, row.first_token, row.tokens); };
  const bool is_new = row.tokens == row.sequence.length;  // no need to read the pages
  own.q_SBND = new_tokens(request.q_SBND);
  own.k_SBGD = is_new ? new_tokens(request.k_SBGD) : sequence_of(paged.k_TGD, row.sequence);
  own.v_SBGD = is_new ? new_tokens(request.v_SBGD) : sequence_of(paged.v_TGD, row.sequence);
  if (request.distance_bias.defined())
    own.distance_bias = narrow_bias(request.distance_bias, row.tokens, row.sequence.length);
  return attention(own);
}

at::Tensor attend_source(const AttentionRequest& request, const PagedKeyValues& paged, const PagedRow& row) {
  AttentionRequest own = request;
  own.q_SBND = request.q_SBND.narrow(0, row.first_token, row.tokens);
  own.k_SBGD = sequence_of(paged.k_TGD, row.source);
  own.v_SBGD = sequence_of(paged.v_TGD, row.source);
  return attention(own);
}

using RowAttention = at::Tensor (*)(const AttentionRequest&, const PagedKeyValues&, const PagedRow&);

// The rows that one kernel decoded, `decoded` (undefined: none), then the others one by one.
at::Tensor with_other_rows(const at::Tensor& decoded, const AttentionRequest& request,
                           const PagedKeyValues& paged, RowAttention attend) {
  const std::vector<PagedRow>& rows = paged.batch->rows;
  const int64_t fused = decoded.defined() ? decoded.size(0) : 0, tokens = request.q_SBND.size(0);
  if (fused == tokens) return decoded.unsqueeze(1);
  if (fused == 0 && rows.size() == 1) return attend(request, paged, rows[0]);
  const int64_t width = request.q_SBND.size(2) * request.q_SBND.size(3);
  const at::Tensor y = at::empty({tokens, 1, width}, request.q_SBND.options());
  if (fused > 0) y.narrow(0, 0, fused).copy_(decoded.unsqueeze(1));
  for (size_t i = static_cast<size_t>(fused); i < rows.size(); ++i)
    y.narrow(0, rows[i].first_token, rows[i].tokens).copy_(attend(request, paged, rows[i]));
  return y;
}

// Queries of the rows that one kernel decodes, [R, G, Q, D].
at::Tensor decoded_queries(const AttentionRequest& request, const PagedKeyValues& paged) {
  return request.q_SBND.squeeze(1)
      .narrow(0, 0, paged.batch->decode_rows)
      .unflatten(1, {paged.k_TGD.size(1), -1});
}

at::Tensor decode(const PagedDecodeInputs& inputs, const AttentionRequest& request, const PagedBatch& batch,
                  const QkvRotation* rope) {
  PagedDecodeOptions options{.scale = request.scale,
                             .window = request.window,
                             .page_size = batch.page_size,
                             .alibi_slopes = request.alibi_slopes,
                             .distance_bias = request.distance_bias};
  if (rope) options.rotation = *rope;
  return paged_decode(inputs, options);
}

}  // namespace

bool decodes_all(const PagedKeyValues& paged, int64_t tokens) {
  return paged.batch && paged.batch->table_RP.defined() && paged.batch->decode_rows == tokens;
}

at::Tensor paged_decode_attention(const QkvParts& qkv, const AttentionRequest& request, PagedKeyValues& paged,
                                  const QkvRotation* rope, const at::Tensor& positions_SB) {
  allocate(paged, qkv.k);
  if (rope && !paged_decode_rotates(*rope, qkv.q.scalar_type())) {
    rope_(qkv.q, rope->table, positions_SB, {.style = rope->style});
    rope_(qkv.k, rope->table, positions_SB, {.style = rope->style});
    rope = nullptr;
  }
  return decode({.q_RGQD = qkv.q.squeeze(1),
                 .k_RGD = qkv.k.squeeze(1),
                 .v_RGD = qkv.v.squeeze(1),
                 .k_pages = paged.k_TGD,
                 .v_pages = paged.v_TGD,
                 .table_RP = paged.batch->table_RP,
                 .positions_R = positions_SB.select(1, 0)},
                request, *paged.batch, rope)
      .unsqueeze(1);
}

at::Tensor paged_attention(const AttentionRequest& request, PagedKeyValues& paged,
                           const at::Tensor& positions_SB) {
  const PagedBatch& batch = *paged.batch;
  TERATRON_ASSERT(request.mask == Mask::causal, "pages are of causal attention");
  allocate(paged, request.k_SBGD);
  const int64_t tokens = request.q_SBND.size(0);
  const at::Tensor k_TGD = request.k_SBGD.squeeze(1), v_TGD = request.v_SBGD.squeeze(1);
  const int64_t fused = batch.table_RP.defined() ? batch.decode_rows : 0;
  at::Tensor decoded;
  if (fused > 0) {
    decoded = decode({.q_RGQD = decoded_queries(request, paged),
                      .k_RGD = k_TGD.narrow(0, 0, fused),
                      .v_RGD = v_TGD.narrow(0, 0, fused),
                      .k_pages = paged.k_TGD,
                      .v_pages = paged.v_TGD,
                      .table_RP = batch.table_RP,
                      .positions_R = positions_SB.select(1, 0).narrow(0, 0, fused)},
                     request, batch, nullptr);
  }
  if (fused < tokens) {
    const auto others = [&](const at::Tensor& x) { return x.narrow(0, fused, tokens - fused); };
    const at::Tensor slots = others(batch.slots_T);
    paged.k_TGD.index_copy_(0, slots, others(k_TGD));
    paged.v_TGD.index_copy_(0, slots, others(v_TGD));
  }
  return with_other_rows(decoded, request, paged, attend_row);
}

void store_source(const at::Tensor& k_SBGD, const at::Tensor& v_SBGD, PagedKeyValues& paged) {
  allocate(paged, k_SBGD);
  paged.k_TGD.index_copy_(0, paged.batch->source_slots_S, k_SBGD.squeeze(1));
  paged.v_TGD.index_copy_(0, paged.batch->source_slots_S, v_SBGD.squeeze(1));
}

at::Tensor paged_cross_attention(const AttentionRequest& request, const PagedKeyValues& paged) {
  const PagedBatch& batch = *paged.batch;
  at::Tensor decoded;
  if (batch.source_table_RP.defined() && batch.decode_rows > 0) {
    decoded = decode({.q_RGQD = decoded_queries(request, paged),
                      .k_pages = paged.k_TGD,
                      .v_pages = paged.v_TGD,
                      .table_RP = batch.source_table_RP,
                      .positions_R = batch.source_last_R},
                     request, batch, nullptr);
  }
  return with_other_rows(decoded, request, paged, attend_source);
}

}  // namespace teratron
