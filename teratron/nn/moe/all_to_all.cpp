#include "teratron/nn/moe/all_to_all.h"

#include <numeric>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using Counts = std::vector<int64_t>;

Counts as_vector(const at::Tensor& x) {
  const at::Tensor counts = x.contiguous();
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

// The first row of each rank's part, and the number of all rows.
Counts begins_of(const Counts& counts) {
  Counts begins(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

// Rows [sent[rank], sent[rank + 1]) go to a rank, [received[rank], received[rank + 1]) come from it.
AsyncTensor start_all_to_all(const at::Tensor& x_RW, const Counts& sent, const Counts& received,
                             const AllToAll::Ranks& ranks) {
  const Group& group = ranks.group;
  const at::Tensor x = x_RW.contiguous(), y = at::empty({received.back(), x.size(1)}, x.options());
  const auto part = [](const at::Tensor& rows, const Counts& begins, int64_t rank) {
    const auto r = static_cast<size_t>(rank);
    return rows.slice(0, begins[r], begins[r + 1]);
  };
  std::vector<ShiftOp> ops;
  std::vector<at::Tensor> places;
  for (int64_t distance = 1; distance < group.size; ++distance) {
    const int64_t to = group.communicator->rank_at(distance), from = group.communicator->rank_at(-distance);
    places.push_back(part(y, received, from));
    const at::Tensor window = group.communicator->alloc_symmetric({ranks.most_rows, x.size(1)}, x.options());
    ops.push_back({window.narrow(0, 0, places.back().size(0)), part(x, sent, to), distance});
  }
  Work arrival = group.communicator->shift(ops);
  part(y, received, group.rank).copy_(part(x, sent, group.rank));
  return {y, Work([ops = std::move(ops), places = std::move(places), arrival]() mutable {
            arrival.wait();
            for (size_t i = 0; i < ops.size(); ++i) places[i].copy_(ops[i].received);
          })};
}

}  // namespace

AllToAll::AllToAll(const at::Tensor& counts, const Ranks& ranks) : ranks_(ranks) {
  const at::Tensor both = at::stack({counts, counts});
  ranks.group.communicator->all_to_all(both.select(0, 1), both.select(0, 0)).wait();
  counts_.emplace(both);
}

AllToAll::AllToAll(const Ranks& ranks)
    : ranks_(ranks),
      sent_(begins_of(Counts(static_cast<size_t>(ranks.group.size), ranks.most_rows))),
      received_(sent_) {}

void AllToAll::await_counts() {
  if (!counts_) return;
  const at::Tensor sent = counts_->wait().select(0, 0), received = counts_->wait().select(0, 1);
  sent_ = begins_of(as_vector(sent.select(1, 0)));
  received_ = begins_of(as_vector(received.select(1, 0)));
  received_sums_ = as_vector(received.sum(0));
  counts_.reset();
}

int64_t AllToAll::sent_rows() {
  await_counts();
  return sent_.back();
}

int64_t AllToAll::received_sum(int64_t column) {
  await_counts();
  return received_sums_[static_cast<size_t>(column)];
}

AsyncTensor AllToAll::start(const at::Tensor& x_RW) const {
  TERATRON_ASSERT(!counts_);
  return start_all_to_all(x_RW, sent_, received_, ranks_);
}

AsyncTensor AllToAll::start_back(const at::Tensor& x_RW) const {
  TERATRON_ASSERT(!counts_);
  return start_all_to_all(x_RW, received_, sent_, ranks_);
}

}  // namespace teratron
