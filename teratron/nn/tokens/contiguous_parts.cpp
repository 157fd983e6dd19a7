#include "teratron/nn/tokens/contiguous_parts.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

// Rows sorted by the rank they go to -> rows sorted by the rank they come from.
at::Tensor exchanged(const at::Tensor& rows, const Counts& sent, const Counts& received, const Group& group) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  const at::Tensor x = rows.contiguous(), y = at::empty(sizes, rows.options());
  std::vector<P2POp> ops;
  int64_t send_at = 0, receive_at = 0;
  for (int64_t rank = 0; rank < group.size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const at::Tensor out = x.narrow(0, send_at, sent[r]), in = y.narrow(0, receive_at, received[r]);
    send_at += sent[r];
    receive_at += received[r];
    if (rank == group.rank) {
      in.copy_(out);
      continue;
    }
    if (sent[r] > 0) ops.push_back({.tensor = out, .peer = rank, .send = true});
    if (received[r] > 0) ops.push_back({.tensor = in, .peer = rank, .send = false});
  }
  if (!ops.empty()) group.communicator->batch_isend_irecv(std::move(ops)).wait();
  return y;
}

at::Tensor moved(const at::Tensor& x_SB, const TokenMove& move, const Group& group) {
  return exchanged(x_SB.flatten(0, 1).index_select(0, move.sent_rows), move.sent, move.received, group)
      .index_select(0, move.received_rows)
      .unflatten(0, {-1, x_SB.size(1)});
}

// Lives as long as the graph: backward may come after the micro-batch's own copy is gone.
struct HeldContext : torch::CustomClassHolder {
  explicit HeldContext(ContextParallel of) : context(std::move(of)) {}
  const TokenMove& move(bool back) const {
    return back ? context.cut->from_contiguous : context.cut->to_contiguous;
  }
  ContextParallel context;
};

struct MoveTokens : torch::autograd::Function<MoveTokens> {
  struct Args {
    const ContextParallel* context;
    bool back;
  };
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SB, const Args& args) {
    const auto held = c10::make_intrusive<HeldContext>(*args.context);
    context->saved_data["context"] = c10::IValue::make_capsule(held);
    context->saved_data["back"] = args.back;
    return moved(x_SB, held->move(args.back), args.context->group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["context"].toCapsule();
    const auto& held = static_cast<const HeldContext&>(*capsule);
    const bool back = context->saved_data["back"].toBool();
    return {moved(gradients[0], held.move(!back), held.context.group), at::Tensor()};
  }
};

}  // namespace

at::Tensor to_contiguous(const at::Tensor& x_SB, const ContextParallel& context) {
  return MoveTokens::apply(x_SB, MoveTokens::Args{&context, false});
}

at::Tensor from_contiguous(const at::Tensor& x_SB, const ContextParallel& context) {
  return MoveTokens::apply(x_SB, MoveTokens::Args{&context, true});
}

}  // namespace teratron
