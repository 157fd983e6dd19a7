#include "teratron/pipeline/executor.h"

#include <map>
#include <optional>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;

using Tensors = std::vector<at::Tensor>;

class Execution {
 public:
  Execution(const PipelineLinks& links, const StageFunctions& stage) : links_(links), stage_(stage) {}

  void run(const Action& action) {
    switch (action.op) {
      case Op::recv_forward:
        return receive(action, links_.forward_in, stage_.messages(action).in);
      case Op::recv_backward:
        return receive(action, links_.backward_in, gradients_of(stage_.messages(action).out));
      case Op::forward:
        return forward(action);
      case Op::backward:
        return backward(action);
      case Op::send_forward:
        return send(take(outbox_, action), links_.forward_out, forward_sent_);
      case Op::send_backward:
        return send(take(outbox_, action), links_.backward_out, backward_sent_);
    }
  }

  void finish() {
    forward_sent_.wait();
    backward_sent_.wait();
    TERATRON_ASSERT(pending_backwards_.empty() || !at::GradMode::is_enabled(),
                    "{} forwards without a backward", pending_backwards_.size());
  }

 private:
  using Key = std::tuple<Op, int64_t, int64_t>;
  // Where the backward of a forward starts, and the tensors whose gradients it computes.
  struct PendingBackward {
    std::vector<std::optional<Edge>> outputs;  // nullopt: does not depend on any trainable parameter or input
    bool of_loss = false;                      // at the end of the model
    at::TensorOptions loss_options;
    Tensors inputs;
  };
  struct Receive {
    Tensors tensors;
    Work work;
    const Group* link = nullptr;  // not null: still to be posted
  };

  static Key key(Op op, const Action& action) { return {op, action.chunk, action.microbatch}; }

  static std::vector<MessageShape> gradients_of(const std::vector<MessageShape>& outputs) {
    std::vector<MessageShape> gradients;
    for (const MessageShape& output : outputs) {
      if (output.differentiable) gradients.push_back(output);
    }
    return gradients;
  }

  template <typename T>
  static T take(std::map<Key, T>& from, const Action& action) {
    auto node = from.extract(key(action.op, action));
    TERATRON_ASSERT(!node.empty(), "nothing computed for chunk {}, micro-batch {}", action.chunk,
                    action.microbatch);
    return std::move(node.mapped());
  }

  // The received message; empty if no receive was posted.
  Tensors wait_message(Op receive, const Action& action) {
    auto node = receives_.extract(key(receive, action));
    if (node.empty()) return {};
    Receive& message = node.mapped();
    if (message.link) start(message, *message.link);
    message.work.wait();
    return message.tensors;
  }

  static Work exchange(const Tensors& tensors, const Group& link, bool send) {
    std::vector<P2POp> ops;
    for (const at::Tensor& tensor : tensors)
      ops.push_back({.tensor = tensor, .peer = send ? 1 : 0, .send = send});
    return link.communicator->batch_isend_irecv(ops);
  }

  static void start(Receive& message, const Group& link) {
    message.work = exchange(message.tensors, link, /*send=*/false);
  }

  void receive(const Action& action, const Group& link, const std::vector<MessageShape>& shapes) {
    if (shapes.empty()) return;
    Receive& message = receives_[key(action.op, action)];
    for (const MessageShape& shape : shapes) message.tensors.push_back(at::empty(shape.sizes, shape.options));
    // On CPU ranks a receive blocks, so it is deferred until its message is needed.
    if (message.tensors.front().is_cpu()) {
      message.link = &link;
    } else {
      start(message, link);
    }
  }

  static void send(const Tensors& tensors, const Group& link, Work& previous) {
    previous.wait();
    if (!tensors.empty()) previous = exchange(tensors, link, /*send=*/true);
  }

  void forward(const Action& action) {
    const ChunkMessages messages = stage_.messages(action);
    const Tensors inputs = wait_message(Op::recv_forward, action);
    const bool training = at::GradMode::is_enabled();
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i].set_requires_grad(training && messages.in[i].differentiable);
    const Tensors outputs = stage_.forward(action, inputs);
    const bool is_last = messages.out.empty();
    TERATRON_ASSERT(outputs.size() == (is_last ? 1 : messages.out.size()), "{} outputs of chunk {}",
                    outputs.size(), action.chunk);
    if (training) {
      PendingBackward& pending = pending_backwards_[key(Op::backward, action)];
      pending.of_loss = is_last;
      pending.loss_options = outputs.front().options().requires_grad(false);
      pending.inputs = inputs;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!is_last && !messages.out[i].differentiable) continue;
        pending.outputs.push_back(outputs[i].requires_grad()
                                      ? std::optional(torch::autograd::impl::gradient_edge(outputs[i]))
                                      : std::nullopt);
      }
    }
    if (is_last) return;  // the loss is not sent
    Tensors& sent = outbox_[key(Op::send_forward, action)];
    for (size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor& output = outputs[i];
      const MessageShape& shape = messages.out[i];
      TERATRON_ASSERT(output.sizes() == shape.sizes && output.dtype() == shape.options.dtype(),
                      "output {} of chunk {} has not the shape and type of its channel", i, action.chunk);
      sent.push_back(output.detach().contiguous());
    }
  }

  void backward(const Action& action) {
    if (stage_.before_backward) stage_.before_backward(action);
    const PendingBackward pending = take(pending_backwards_, action);
    Tensors gradients = wait_message(Op::recv_backward, action);
    if (pending.of_loss) gradients = {at::ones({}, pending.loss_options)};
    std::vector<Edge> roots;
    Tensors root_gradients;
    for (size_t i = 0; i < pending.outputs.size(); ++i) {
      if (!pending.outputs[i]) continue;
      roots.push_back(*pending.outputs[i]);
      root_gradients.push_back(gradients.at(i));
    }
    if (!roots.empty()) {
      Engine::get_default_engine().execute(roots, root_gradients, /*keep_graph=*/false,
                                           /*create_graph=*/false, /*accumulate_grad=*/true);
    }
    if (pending.inputs.empty()) return;
    Tensors& sent = outbox_[key(Op::send_backward, action)];
    for (const at::Tensor& input : pending.inputs) {
      if (!input.requires_grad()) continue;
      sent.push_back(input.grad().defined() ? input.grad().contiguous() : at::zeros_like(input));
    }
  }

  const PipelineLinks& links_;
  const StageFunctions& stage_;
  std::map<Key, Receive> receives_;
  std::map<Key, PendingBackward> pending_backwards_;
  std::map<Key, Tensors> outbox_;
  Work forward_sent_;
  Work backward_sent_;
};

}  // namespace

void connect_links(const Mesh& mesh, const at::TensorOptions& options) {
  const Group& stages = mesh.group(Axis::pp);
  const PipelineLinks& links = mesh.pipeline_links();
  const at::Tensor token = at::zeros({1}, options);
  std::vector<Work> works;
  const auto post = [&](const Group& link, bool send) {
    works.push_back(
        link.communicator->batch_isend_irecv({{.tensor = token, .peer = send ? 1 : 0, .send = send}}));
  };
  const auto meet_next = [&] {
    post(links.forward_out, true);
    post(links.backward_in, false);
  };
  const auto meet_previous = [&] {
    post(links.forward_in, false);
    post(links.backward_out, true);
  };
  // Opening a link blocks until its other end does. Half of the pairs at a time: two rounds (three, if their
  // number is odd) however many stages there are.
  if (stages.size > 1 && stages.rank % 2 == 0) {
    meet_next();
    meet_previous();
  } else if (stages.size > 1) {
    meet_previous();
    meet_next();
  }
  for (Work& work : works) work.wait();
}

void run_schedule(std::span<const Action> actions, const PipelineLinks& links, const StageFunctions& stage) {
  Execution execution(links, stage);
  for (const Action& action : actions) execution.run(action);
  execution.finish();
}

}  // namespace teratron
