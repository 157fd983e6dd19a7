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

// The cut of the sequences of an index column.
ContextParallel cut_of(const at::Tensor& index_SB, const at::Tensor& cu_seqlens, const Group& group) {
  const int64_t length = index_SB.size(0), samples = index_SB.size(1);
  const at::Device device = index_SB.device();
  return {group, cu_seqlens.defined()
                     ? make_context_cut(document_bounds(cu_seqlens), samples, length, group, device)
                     : make_context_cut(samples, length, group, device)};
}

}  // namespace

MicroBatch cut_over_context(const MicroBatch& whole, const Group& group) {
  if (group.size == 1) return whole;
  MicroBatch own = whole;
  const auto cut = [&](const char* index, const at::Tensor& cu_seqlens) {
    const at::Tensor& index_SB = whole[index];
    const ContextParallel context = cut_of(index_SB, cu_seqlens, group);
    for (const auto& [name, tensor] : whole.tensors) {
      if (tensor.defined() && tensor.dim() >= 2 && tensor.size(0) == index_SB.size(0) &&
          tensor.size(1) == index_SB.size(1))
        own.tensors.set(name, cut_tokens(tensor, context));
    }
    return context;
  };
  if (whole["encoder_index"].defined()) own.source_parallel = cut("encoder_index", {});
  own.context_parallel = whole["decoder_index"].defined() ? cut("decoder_index", {})
                                                          : cut("sequence_index", whole["cu_seqlens"]);
  return own;
}

}  // namespace teratron
