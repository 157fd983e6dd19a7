#include "teratron/nn/recurrent/recurrent_core.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor part_of(const at::Tensor& x, const std::vector<int64_t>& segments, const HeadPart& part) {
  if (part.count == 1) return x;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& segment : x.split_with_sizes(segments))
    parts.push_back(segment.chunk(part.count)[part.index]);
  return at::cat(parts);
}

at::Tensor whole_of(const at::Tensor& part_x, const std::vector<int64_t>& segments, const HeadPart& part) {
  if (part.count == 1) return part_x;
  std::vector<int64_t> shape = part_x.sizes().vec();
  shape[0] *= part.count;
  const at::Tensor whole = at::zeros(shape, part_x.options());
  int64_t first = 0, from = 0;
  for (const int64_t segment : segments) {
    const int64_t rows = segment / part.count;
    whole.narrow(0, first + part.index * rows, rows).copy_(part_x.narrow(0, from, rows));
    first += segment;
    from += rows;
  }
  return whole;
}

}  // namespace teratron
