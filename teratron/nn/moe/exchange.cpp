#include "teratron/nn/moe/exchange.h"

#include <numeric>

#include <ATen/ATen.h>

namespace teratron {

namespace {

using Counts = std::vector<int64_t>;

int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Counts as_vector(const at::Tensor& x) {
  const at::Tensor counts = x.contiguous();
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

AsyncTensor start_exchange(const at::Tensor& x_RW, const Counts& sent, const Counts& received,
                           const Group& group) {
  const at::Tensor x = x_RW.contiguous();
  const at::Tensor y = at::empty({sum(received), x.size(1)}, x.options());
  std::vector<P2POp> operations;
  int64_t from = 0, to = 0;
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const at::Tensor out = x.narrow(0, from, sent[r]), in = y.narrow(0, to, received[r]);
    from += sent[r];
    to += received[r];
    if (rank == group.rank) {
      in.copy_(out);
      continue;
    }
    if (out.numel() > 0) operations.push_back({out, rank, /*send=*/true});
    if (in.numel() > 0) operations.push_back({in, rank, /*send=*/false});
  }
  if (operations.empty()) return {y};
  return {y, group.communicator->batch_isend_irecv(std::move(operations))};
}

}  // namespace

Exchange::Exchange(const at::Tensor& counts, const Group& group) : group_(group) {
  const at::Tensor both = at::stack({counts, counts});
  group.communicator->all_to_all(both.select(0, 1), both.select(0, 0)).wait();
  counts_.emplace(both);
}

Exchange::Exchange(int64_t rows_per_rank, const Group& group)
    : group_(group), sent_(static_cast<size_t>(group.size), rows_per_rank), received_(sent_) {}

void Exchange::await_counts() {
  if (!counts_) return;
  const at::Tensor sent = counts_->wait().select(0, 0), received = counts_->wait().select(0, 1);
  sent_ = as_vector(sent.select(1, 0));
  received_ = as_vector(received.select(1, 0));
  received_sums_ = as_vector(received.sum(0));
  counts_.reset();
}

int64_t Exchange::sent_rows() {
  await_counts();
  return sum(sent_);
}

int64_t Exchange::received_sum(int64_t column) {
  await_counts();
  return received_sums_[static_cast<size_t>(column)];
}

AsyncTensor Exchange::start(const at::Tensor& x_RW) {
  await_counts();
  return start_exchange(x_RW, sent_, received_, group_);
}

AsyncTensor Exchange::start_back(const at::Tensor& x_RW) {
  await_counts();
  return start_exchange(x_RW, received_, sent_, group_);
}

}  // namespace teratron
