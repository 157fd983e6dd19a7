#include "teratron/nn/attention/paged_attention.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/paged_decode.h"
#include "teratron/nn/attention/relative_position.h"
#include "teratron/nn/attention/rope.h"

namespace teratron {

namespace {

// Keys or values of a sequence, [length, 1, G, D].
at::Tensor sequence_of(const at::Tensor& pages_TGD, const StoredTokens& tokens) {
  const at::Tensor x = tokens.first_place >= 0 ? pages_TGD.narrow(0, tokens.first_place, tokens.length)
                                               : pages_TGD.index_select(0, tokens.places_L);
  return x.unsqueeze(1);
}

at::Tensor attend_row(const AttentionRequest& request, const KeyValuePages& pages, const GenerationRow& row) {
  AttentionRequest own = request;
  const auto new_tokens = [&](const at::Tensor& x) { return x.narrow(0, row.first_token, row.tokens); };
  const bool is_new = row.tokens == row.sequence.length;  // no need to read the pages
  own.q_SBND = new_tokens(request.q_SBND);
  own.k_SBGD = is_new ? new_tokens(request.k_SBGD) : sequence_of(pages.k_TGD, row.sequence);
  own.v_SBGD = is_new ? new_tokens(request.v_SBGD) : sequence_of(pages.v_TGD, row.sequence);
  if (request.distance_bias.defined())
    own.distance_bias = narrow_bias(request.distance_bias, row.tokens, row.sequence.length);
  return attention(own);
}

at::Tensor attend_source(const AttentionRequest& request, const KeyValuePages& pages,
                         const GenerationRow& row) {
  AttentionRequest own = request;
  own.q_SBND = request.q_SBND.narrow(0, row.first_token, row.tokens);
  own.k_SBGD = sequence_of(pages.k_TGD, row.source);
  own.v_SBGD = sequence_of(pages.v_TGD, row.source);
  return attention(own);
}

using RowAttention = at::Tensor (*)(const AttentionRequest&, const KeyValuePages&, const GenerationRow&);

// The rows that one kernel decoded, `decoded` (undefined: none), then the others one by one.
at::Tensor with_other_rows(const at::Tensor& decoded, const AttentionRequest& request,
                           const KeyValuePages& pages, const GenerationBatch& batch, RowAttention attend) {
  const std::vector<GenerationRow>& rows = batch.rows;
  const int64_t fused = decoded.defined() ? decoded.size(0) : 0, tokens = request.q_SBND.size(0);
  if (fused == tokens) return decoded.unsqueeze(1);
  if (fused == 0 && rows.size() == 1) return attend(request, pages, rows[0]);
  const int64_t width = request.q_SBND.size(2) * pages.v_TGD.size(2);
  const at::Tensor y = at::empty({tokens, 1, width}, request.q_SBND.options());
  if (fused > 0) y.narrow(0, 0, fused).copy_(decoded.unsqueeze(1));
  for (size_t i = static_cast<size_t>(fused); i < rows.size(); ++i)
    y.narrow(0, rows[i].first_token, rows[i].tokens).copy_(attend(request, pages, rows[i]));
  return y;
}

// Queries of the rows that one kernel decodes, [R, G, Q, D].
at::Tensor decoded_queries(const AttentionRequest& request, const KeyValuePages& pages, int64_t rows) {
  return request.q_SBND.squeeze(1).narrow(0, 0, rows).unflatten(1, {pages.k_TGD.size(1), -1});
}

at::Tensor decode(const PagedDecodeInputs& inputs, const AttentionRequest& request,
                  const GenerationBatch& batch, const QkvRotation* rope) {
  PagedDecodeOptions options{.scale = request.scale,
                             .softcap = request.softcap,
                             .window = request.window,
                             .chunk = request.chunk,
                             .page_size = batch.page_size,
                             .alibi_slopes = request.alibi_slopes,
                             .distance_bias = request.distance_bias};
  if (request.sinks_N.defined()) options.sinks = request.sinks_N.to(at::kFloat).contiguous();
  if (rope) options.rotation = *rope;
  return paged_decode(inputs, options);
}

}  // namespace

bool decodes_all(const LayerContext& context, int64_t tokens) {
  return context.generation->table_RP.defined() && context.generation->has_single_tokens(tokens);
}

at::Tensor paged_decode_attention(const QkvParts& qkv, const AttentionRequest& request,
                                  const KeyValuePages& pages, const LayerContext& context,
                                  const RotaryEmbedding* rotary) {
  const GenerationBatch& batch = *context.generation;
  std::optional<QkvRotation> rope;
  if (rotary) rope = rotary->rotation(context.rope_rows_SB);
  // The kernel's rows of the table are the positions.
  const bool by_position = context.rope_rows_SB.is_same(context.positions_SB);
  if (rope && !(by_position && paged_decode_rotates(*rope, qkv.q.scalar_type()))) {
    rope_(qkv.q, rope->table, context.rope_rows_SB, {.style = rope->style});
    rope_(qkv.k, rope->table, context.rope_rows_SB, {.style = rope->style});
    rope.reset();
  }
  return decode({.q_RGQD = qkv.q.squeeze(1),
                 .k_RGD = qkv.k.squeeze(1),
                 .v_RGD = qkv.v.squeeze(1),
                 .k_pages = pages.k_TGD,
                 .v_pages = pages.v_TGD,
                 .table_RP = batch.table_RP,
                 .positions_R = context.positions_SB.select(1, 0)},
                request, batch, rope ? &*rope : nullptr)
      .unsqueeze(1);
}

at::Tensor paged_attention(const AttentionRequest& request, const KeyValuePages& pages,
                           const LayerContext& context) {
  const GenerationBatch& batch = *context.generation;
  TERATRON_ASSERT(request.mask == Mask::causal, "pages are of causal attention");
  const int64_t tokens = request.q_SBND.size(0);
  const at::Tensor k_TGD = request.k_SBGD.squeeze(1), v_TGD = request.v_SBGD.squeeze(1);
  const int64_t fused = batch.table_RP.defined() ? batch.decode_rows : 0;
  at::Tensor decoded;
  if (fused > 0) {
    decoded = decode({.q_RGQD = decoded_queries(request, pages, fused),
                      .k_RGD = k_TGD.narrow(0, 0, fused),
                      .v_RGD = v_TGD.narrow(0, 0, fused),
                      .k_pages = pages.k_TGD,
                      .v_pages = pages.v_TGD,
                      .table_RP = batch.table_RP,
                      .positions_R = context.positions_SB.select(1, 0).narrow(0, 0, fused)},
                     request, batch, nullptr);
  }
  if (fused < tokens) {
    const auto others = [&](const at::Tensor& x) { return x.narrow(0, fused, tokens - fused); };
    const at::Tensor places = others(batch.places_T);
    pages.k_TGD.index_copy_(0, places, others(k_TGD));
    pages.v_TGD.index_copy_(0, places, others(v_TGD));
  }
  return with_other_rows(decoded, request, pages, batch, attend_row);
}

void store_source(const at::Tensor& k_SBGD, const at::Tensor& v_SBGD, const KeyValuePages& pages,
                  const LayerContext& context) {
  const at::Tensor& places_S = context.generation->source_places_S;
  pages.k_TGD.index_copy_(0, places_S, k_SBGD.squeeze(1));
  pages.v_TGD.index_copy_(0, places_S, v_SBGD.squeeze(1));
}

at::Tensor paged_cross_attention(const AttentionRequest& request, const KeyValuePages& pages,
                                 const LayerContext& context) {
  const GenerationBatch& batch = *context.generation;
  at::Tensor decoded;
  if (batch.source_table_RP.defined() && batch.decode_rows > 0) {
    decoded = decode({.q_RGQD = decoded_queries(request, pages, batch.decode_rows),
                      .k_pages = pages.k_TGD,
                      .v_pages = pages.v_TGD,
                      .table_RP = batch.source_table_RP,
                      .positions_R = batch.source_last_R},
                     request, batch, nullptr);
  }
  return with_other_rows(decoded, request, pages, batch, attend_source);
}

}  // namespace teratron
