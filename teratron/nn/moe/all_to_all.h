// All-to-all of rows with a different number for each pair of ranks.
#pragma once

#include <optional>
#include <vector>

#include "teratron/nn/moe/host_copy.h"
#include "teratron/nn/parallel_matmul.h"

namespace teratron {

class AllToAll {
 public:
  struct Ranks {
    Group group;
    int64_t most_rows = 0;  // from any rank to any other
  };
  /// `counts`: i64 [ranks, N]; column 0: rows that this rank sends to each. Collective. The first call
  /// of sent_rows() or received_sum() waits until the counts are on the host; it comes before start().
  AllToAll(const at::Tensor& counts, const Ranks& ranks);
  /// `most_rows` between all ranks. Not collective, does not wait.
  explicit AllToAll(const Ranks& ranks);

  int64_t sent_rows();
  /// Sum of what all ranks have in this column of their counts for this one.
  int64_t received_sum(int64_t column);
  /// x [sent rows, W], sorted by destination -> [received rows, W], sorted by source.
  AsyncTensor start(const at::Tensor& x_RW) const;
  /// The other way: what was received goes back.
  AsyncTensor start_back(const at::Tensor& x_RW) const;

 private:
  void await_counts();

  Ranks ranks_;
  std::optional<HostCopy> counts_;        // [2, ranks, N], sent and received, on their way
  std::vector<int64_t> sent_, received_;  // where the rows of each rank begin; the last: all rows
  std::vector<int64_t> received_sums_;
};

}  // namespace teratron
