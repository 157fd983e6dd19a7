#include "teratron/optim/finalize_grads.h"

#include <map>

#include <ATen/ATen.h>

namespace teratron {

namespace {

// One sum for many small tensors, in pieces that take little memory.
void all_reduce_packed(const std::vector<at::Tensor>& parts, const Group& group) {
  constexpr int64_t most = 1 << 24;
  for (size_t first = 0, end = 0; first < parts.size(); first = end) {
    int64_t elements = 0;
    while (end < parts.size() && (end == first || elements + parts[end].numel() <= most))
      elements += parts[end++].numel();
    const at::TensorList some = at::TensorList(parts).slice(first, end - first);
    const at::Tensor packed = at::cat(some);
    group.communicator->all_reduce(packed, ReduceOp::sum).wait();
    int64_t position = 0;
    for (const at::Tensor& part : some) {
      part.copy_(packed.narrow(0, position, part.numel()));
      position += part.numel();
    }
  }
}

void all_reduce_partial_grads(const ParamAndGradBuffer& buffer, const Mesh& mesh) {
  std::map<AxisSet, std::vector<at::Tensor>> by_axes;
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    by_axes[entry.parameter->options.grad_sum].push_back(entry.parameter->main_grad.view(-1));
  }
  for (const auto& [axes, parts] : by_axes) {
    const Group& group = mesh.group(axes);
    if (group.size > 1) all_reduce_packed(parts, group);
  }
}

// The ranks that share rows own the same slices of the buffer.
void all_reduce_shared_rows(const ParamAndGradBuffer& buffer) {
  struct Shared {
    Group group;
    std::vector<at::Tensor> parts;
  };
  std::map<int64_t, Shared> by_size;  // of the group
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    if (entry.sharers.size == 1) continue;
    Shared& shared = by_size[entry.sharers.size];
    shared.group = entry.sharers;
    for (const FlatRange& owned : buffer.owned()) {
      const FlatRange part = intersection(owned, entry.shared());
      if (part.size() > 0) shared.parts.push_back(part.of(buffer.gradients()));
    }
  }
  for (const auto& [_, shared] : by_size) all_reduce_packed(shared.parts, shared.group);
}

// A tied tensor has a separate bucket, so all its stages own the same slices of it.
void all_reduce_tied_grads(const ParamAndGradBuffer& buffer) {
  std::map<std::string, const ParamAndGradBuffer::Entry*> tied;  // in the same order on all stages
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    if (entry.tied.size > 1) tied[entry.parameter->name] = &entry;
  }
  for (const auto& [_, entry] : tied) {
    for (const FlatRange& owned : buffer.owned()) {
      const FlatRange part = intersection(owned, entry->range);
      if (part.size() == 0) continue;
      entry->tied.communicator->all_reduce(part.of(buffer.gradients()), ReduceOp::sum).wait();
    }
  }
}

}  // namespace

void finalize_grads(ParamAndGradBuffers& buffers, const Mesh& mesh) {
  for (const ParamAndGradBuffer& buffer : buffers) {
    all_reduce_partial_grads(buffer, mesh);
    all_reduce_shared_rows(buffer);
    all_reduce_tied_grads(buffer);
  }
}

}  // namespace teratron
