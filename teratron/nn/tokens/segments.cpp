#include "teratron/nn/tokens/segments.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor segments_of_tokens(const Segments& segments, int64_t length, int64_t batch) {
  if (!segments.defined()) return {};
  const at::Tensor starts = segments.cu_seqlens_q.to(at::kLong);
  return at::zeros({length * batch + 1}, starts.options())
      .index_fill_(0, starts, 1)
      .narrow(0, 0, length * batch)
      .cumsum(0)
      .view({batch, length})
      .t();
}

}  // namespace teratron
