#include "teratron/nn/recurrent/recurrent_core.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace teratron {

Slices slices_of(const std::vector<int64_t>& segments, const HeadPart& part) {
  Slices slices;
  int64_t first = 0;
  for (const int64_t segment : segments) {
    const int64_t count = segment / part.count;
    slices.push_back({first + part.index * count, count});
    first += segment;
  }
  return slices;
}

namespace {

// Slices that follow each other become one.
Slices joined(const Slices& slices) {
  Slices all;
  for (const Slice& slice : slices) {
    if (!all.empty() && all.back().first + all.back().count == slice.first) {
      all.back().count += slice.count;
    } else {
      all.push_back(slice);
    }
  }
  return all;
}

}  // namespace

at::Tensor take(const at::Tensor& x, int64_t dim, const Slices& slices) {
  std::vector<at::Tensor> parts;
  for (const auto& [first, count] : joined(slices)) parts.push_back(x.narrow(dim, first, count));
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor identity_convolution(const Parameter& weight) {
  const at::Tensor identity = at::zeros({weight.tensor.size(0), 1, 2}, weight.tensor.options());
  identity.select(2, 1).fill_(1);
  return identity;
}

at::Tensor put_back(const at::Tensor& taken, const Slices& slices, const at::Tensor& like) {
  if (taken.size(0) == like.size(0)) return taken;
  const at::Tensor whole = at::zeros(like.sizes(), taken.options());
  int64_t from = 0;
  for (const auto& [first, count] : slices) {
    whole.narrow(0, first, count).copy_(taken.narrow(0, from, count));
    from += count;
  }
  return whole;
}

at::Tensor recurrent_anchor(const RecurrentCore& core) {
  const std::vector<Parameter*> parameters = core.parameters();
  const auto trained =
      std::ranges::find_if(parameters, [](const Parameter* p) { return p->options.trainable; });
  return grad_anchor({trained == parameters.end() ? parameters.front() : *trained});
}

}  // namespace teratron
