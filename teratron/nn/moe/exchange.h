// All-to-all of rows with a different number for each pair of ranks.
#pragma once

#include <numeric>
#include <vector>

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

class Exchange {
 public:
  /// `counts`: i64 [ranks], rows that this rank sends to each. Collective; waits for the device.
  Exchange(const at::Tensor& counts, const Group& group);
  /// As many rows between all. Not collective, does not wait.
  Exchange(int64_t rows_per_rank, const Group& group);

  int64_t sent_rows() const { return std::accumulate(sent_.begin(), sent_.end(), int64_t{0}); }
  /// x [sent rows, H], sorted by destination -> [received rows, H], sorted by source. Differentiable.
  at::Tensor forward(const at::Tensor& x_RH) const;
  /// The other way: what was received goes back. Differentiable.
  at::Tensor backward(const at::Tensor& x_RH) const;
  /// forward() without autograd.
  at::Tensor values(const at::Tensor& x_RH) const;

 private:
  std::vector<int64_t> sent_, received_;
  Group group_;
};

}  // namespace teratron
