#include "teratron/optim/finalize_grads.h"

#include <map>

#include <ATen/ATen.h>

namespace teratron {

namespace {

void all_reduce_partial_grads(const ParamAndGradBuffer& buffer, const Mesh& mesh) {
  std::map<AxisSet, std::vector<at::Tensor>> by_axes;
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    by_axes[entry.parameter->options.grad_sum].push_back(entry.parameter->main_grad.view(-1));
  }
  for (const auto& [axes, parts] : by_axes) {
    const Group& group = mesh.group(axes);
    if (group.size == 1) continue;
    const at::Tensor packed = at::cat(parts);
    group.communicator->all_reduce(packed, ReduceOp::sum).wait();
    int64_t position = 0;
    for (const at::Tensor& part : parts) {
      part.copy_(packed.narrow(0, position, part.numel()));
      position += part.numel();
    }
  }
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
    all_reduce_tied_grads(buffer);
  }
}

}  // namespace teratron
