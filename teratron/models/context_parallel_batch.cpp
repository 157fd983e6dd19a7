#include "teratron/models/context_parallel_batch.h"

#include <ATen/ATen.h>

namespace teratron {

namespace {

// The first token of each document that is not empty.
std::vector<int32_t> document_bounds(const at::Tensor& cu_seqlens) {
  const at::Tensor host = cu_seqlens.cpu().contiguous();
  const auto* const first = host.const_data_ptr<int32_t>();
  std::vector<int32_t> bounds;
  for (int64_t i = 0; i + 1 < host.numel(); ++i) {
    if (first[i] < first[i + 1]) bounds.push_back(first[i]);
  }
  return bounds;
}

}  // namespace

MicroBatch cut_over_context(const MicroBatch& whole, const Group& group) {
  if (group.size == 1) return whole;
  const at::Tensor& index_SB = whole["sequence_index"];
  const int64_t length = index_SB.size(0), samples = index_SB.size(1);
  const at::Tensor& cu_seqlens = whole["cu_seqlens"];
  MicroBatch own = whole;
  own.context_parallel = {
      group, cu_seqlens.defined()
                 ? make_context_cut(document_bounds(cu_seqlens), samples, length, group, index_SB.device())
                 : make_context_cut(samples, length, group, index_SB.device())};
  for (const auto& [name, tensor] : whole.tensors) {
    if (tensor.dim() >= 2 && tensor.size(0) == length && tensor.size(1) == samples)
      own.tensors.set(name, cut_tokens(tensor, own.context_parallel));
  }
  return own;
}

}  // namespace teratron
