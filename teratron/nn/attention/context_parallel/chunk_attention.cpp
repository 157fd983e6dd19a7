#include "teratron/nn/attention/context_parallel/chunk_attention.h"

#include <ATen/ATen.h>

#include "teratron/kernels/attention/merge_attention.h"
#include "teratron/nn/attention/context_parallel/merged_attention.h"
#include "teratron/nn/parameter.h"

namespace teratron {

namespace {

// Queries [first, first + count) of this rank and some of the keys.
struct Block {
  int64_t first_query, queries, first_key, keys;
  Mask mask;

  at::Tensor of_queries(const at::Tensor& x) const { return x.narrow(0, first_query, queries); }
  at::Tensor of_keys(const at::Tensor& x) const { return x.narrow(0, first_key, keys); }
};

struct ChunkState final : MergedAttention {
  ChunkState(AttentionRequest request_, int64_t rank_) : request(std::move(request_)), rank(rank_) {}
  PartialAttention forward(const QueryKeyValue& qkv) const override;
  QueryKeyValue backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                         const at::Tensor& dy_SBND) const override;

  AttentionRequest request;  // without tensors
  int64_t rank;

  // Blocks of the first chunk, then of the second.
  std::vector<Block> blocks(const QueryKeyValue& qkv) const {
    const int64_t chunk = qkv.q_SBND.size(0) / 2, keys = qkv.k_SBGD.size(0);
    std::vector<Block> result;
    for (const int64_t i : {int64_t{0}, int64_t{1}}) {
      const int64_t before = i == 0 ? rank * chunk : keys - (rank + 1) * chunk;
      result.push_back({i * chunk, chunk, before, chunk, Mask::causal});
      if (before > 0) result.push_back({i * chunk, chunk, 0, before, Mask::full});
    }
    return result;
  }

  AttentionRequest request_of(const Block& block, const QueryKeyValue& qkv) const {
    AttentionRequest part = request;
    part.q_SBND = block.of_queries(qkv.q_SBND);
    part.k_SBGD = block.of_keys(qkv.k_SBGD);
    part.v_SBGD = block.of_keys(qkv.v_SBGD);
    part.mask = block.mask;
    return part;
  }
};

PartialAttention chunk_forward(const ChunkState& state, const QueryKeyValue& qkv) {
  AttentionMerge merge(qkv.q_SBND);
  for (const Block& block : state.blocks(qkv)) {
    const PartialAttention part = partial_attention(state.request_of(block, qkv));
    merge.add({part.y_SBND, part.logsumexp_BNS, block.first_query});
  }
  const AttentionPart whole = merge.result();
  return {whole.y_SBND, whole.logsumexp_BNS};
}

// In fp32 (fp64).
QueryKeyValue zero_sums(const QueryKeyValue& qkv) {
  const auto zeros = [](const at::Tensor& x) {
    return at::zeros(x.sizes(), x.options().dtype(main_grad_dtype(x.scalar_type())));
  };
  return {zeros(qkv.q_SBND), zeros(qkv.k_SBGD), zeros(qkv.v_SBGD)};
}

QueryKeyValue chunk_backward(const ChunkState& state, const QueryKeyValue& qkv, const PartialAttention& whole,
                             const at::Tensor& dy) {
  const QueryKeyValue sums = zero_sums(qkv);
  for (const Block& block : state.blocks(qkv)) {
    const at::Tensor logsumexp = whole.logsumexp_BNS.narrow(2, block.first_query, block.queries).contiguous();
    const QueryKeyValue d = partial_attention_backward(
        state.request_of(block, qkv), {block.of_queries(whole.y_SBND), logsumexp}, block.of_queries(dy));
    block.of_queries(sums.q_SBND).add_(d.q_SBND);
    block.of_keys(sums.k_SBGD).add_(d.k_SBGD);
    block.of_keys(sums.v_SBGD).add_(d.v_SBGD);
  }
  return {sums.q_SBND.to(qkv.q_SBND.scalar_type()), sums.k_SBGD.to(qkv.k_SBGD.scalar_type()),
          sums.v_SBGD.to(qkv.v_SBGD.scalar_type())};
}

PartialAttention ChunkState::forward(const QueryKeyValue& qkv) const {
  return chunk_forward(*this, qkv);
}

QueryKeyValue ChunkState::backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                                   const at::Tensor& dy_SBND) const {
  return chunk_backward(*this, qkv, whole, dy_SBND);
}

}  // namespace

at::Tensor chunk_attention(const AttentionRequest& request, int64_t rank) {
  return merged_attention({request.q_SBND, request.k_SBGD, request.v_SBGD},
                          c10::make_intrusive<ChunkState>(without_tensors(request), rank), request.sinks_N);
}

}  // namespace teratron
