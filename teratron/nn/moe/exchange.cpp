#include "teratron/nn/moe/exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What goes to each rank and comes from it.
struct Route {
  std::vector<int64_t> sent, received;
  Group group;

  Route reversed() const { return {received, sent, group}; }
};

at::Tensor exchange_rows(const at::Tensor& x_RH, const Route& route) {
  const at::Tensor x = x_RH.contiguous();
  const int64_t rows = std::accumulate(route.received.begin(), route.received.end(), int64_t{0});
  at::Tensor y = at::empty({rows, x.size(1)}, x.options());
  std::vector<P2POp> operations;
  int64_t from = 0, to = 0;
  for (int64_t rank = 0; rank < route.group.size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const at::Tensor out = x.narrow(0, from, route.sent[r]), in = y.narrow(0, to, route.received[r]);
    from += route.sent[r];
    to += route.received[r];
    if (rank == route.group.rank) {
      in.copy_(out);
      continue;
    }
    if (out.numel() > 0) operations.push_back({out, rank, /*send=*/true});
    if (in.numel() > 0) operations.push_back({in, rank, /*send=*/false});
  }
  if (!operations.empty()) route.group.communicator->batch_isend_irecv(std::move(operations)).wait();
  return y;
}

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group group_) : group(std::move(group_)) {}
  Group group;
};

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Route& route) {
    context->saved_data["sent"] = route.sent;
    context->saved_data["received"] = route.received;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(route.group));
    return exchange_rows(x, route);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = context->saved_data["group"].toCapsule();
    const Route route{context->saved_data["sent"].toIntVector(),
                      context->saved_data["received"].toIntVector(),
                      static_cast<const GroupHolder&>(*holder).group};
    return {exchange_rows(gradients[0], route.reversed()), at::Tensor()};
  }
};

std::vector<int64_t> as_vector(const at::Tensor& x) {
  const at::Tensor host = x.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

}  // namespace

Exchange::Exchange(const at::Tensor& counts, const Group& group) : group_(group) {
  at::Tensor received = at::empty_like(counts);
  group.communicator->all_to_all(received, counts.contiguous()).wait();
  sent_ = as_vector(counts);
  received_ = as_vector(received);
}

Exchange::Exchange(int64_t rows_per_rank, const Group& group)
    : sent_(static_cast<size_t>(group.size), rows_per_rank), received_(sent_), group_(group) {}

at::Tensor Exchange::forward(const at::Tensor& x_RH) const {
  return ExchangeFunction::apply(x_RH, Route{sent_, received_, group_});
}

at::Tensor Exchange::backward(const at::Tensor& x_RH) const {
  return ExchangeFunction::apply(x_RH, Route{received_, sent_, group_});
}

at::Tensor Exchange::values(const at::Tensor& x_RH) const {
  return exchange_rows(x_RH, {sent_, received_, group_});
}

}  // namespace teratron
