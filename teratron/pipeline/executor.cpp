#include "teratron/pipeline/executor.h"

#include <map>
#include <tuple>

#include <torch/csrc/autograd/engine.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;

class Execution {
 public:
  Execution(const PipelineLinks& links, const StageFunctions& stage, const MessageShape& message)
      : links_(links), stage_(stage), message_(message) {}

  void run(const Action& action) {
    switch (action.op) {
      case Op::recv_forward:
        return receive(action, links_.forward_in);
      case Op::recv_backward:
        return receive(action, links_.backward_in);
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
  // Where the backward of a forward starts, and the tensor whose gradient it computes.
  struct PendingBackward {
    Edge output;
    at::TensorOptions output_options;
    at::Tensor input;
  };
  struct Receive {
    at::Tensor tensor;
    Work work;
    const Group* link = nullptr;  // not null: still to be posted
  };

  static Key key(Op op, const Action& action) { return {op, action.chunk, action.microbatch}; }

  template <typename T>
  static T take(std::map<Key, T>& from, const Action& action) {
    auto node = from.extract(key(action.op, action));
    TERATRON_ASSERT(!node.empty(), "nothing computed for chunk {}, micro-batch {}", action.chunk,
                    action.microbatch);
    return std::move(node.mapped());
  }

  // The received message; undefined if no receive was posted.
  at::Tensor wait_message(Op receive, const Action& action) {
    auto node = receives_.extract(key(receive, action));
    if (node.empty()) return {};
    Receive& message = node.mapped();
    if (message.link) start(message, *message.link);
    message.work.wait();
    return message.tensor;
  }

  static void start(Receive& message, const Group& link) {
    message.work =
        link.communicator->batch_isend_irecv({{.tensor = message.tensor, .peer = 0, .send = false}});
  }

  void receive(const Action& action, const Group& link) {
    Receive& message = receives_[key(action.op, action)];
    message.tensor = at::empty(message_.sizes, message_.options);
    // On CPU ranks a receive blocks, so it is deferred until its message is needed.
    if (message.tensor.is_cpu()) {
      message.link = &link;
    } else {
      start(message, link);
    }
  }

  static void send(const at::Tensor& tensor, const Group& link, Work& previous) {
    previous.wait();
    previous = link.communicator->batch_isend_irecv({{.tensor = tensor, .peer = 1, .send = true}});
  }

  void forward(const Action& action) {
    const at::Tensor input = wait_message(Op::recv_forward, action);
    const bool differentiable = at::GradMode::is_enabled();
    if (input.defined()) input.set_requires_grad(differentiable);
    const at::Tensor output = stage_.forward(action, input);
    if (differentiable) {
      pending_backwards_[key(Op::backward, action)] = {torch::autograd::impl::gradient_edge(output),
                                                       output.options(), input};
    }
    // A scalar is the loss, which is not sent.
    if (output.dim() > 0) outbox_[key(Op::send_forward, action)] = output.detach().contiguous();
  }

  void backward(const Action& action) {
    if (stage_.before_backward) stage_.before_backward(action);
    const PendingBackward pending = take(pending_backwards_, action);
    at::Tensor gradient = wait_message(Op::recv_backward, action);
    // At the end of the model: d loss / d loss.
    if (!gradient.defined()) gradient = at::ones({}, pending.output_options.requires_grad(false));
    Engine::get_default_engine().execute({pending.output}, {gradient}, /*keep_graph=*/false,
                                         /*create_graph=*/false,
                                         /*accumulate_grad=*/true);
    if (pending.input.defined()) outbox_[key(Op::send_backward, action)] = pending.input.grad().contiguous();
  }

  const PipelineLinks& links_;
  const StageFunctions& stage_;
  const MessageShape& message_;
  std::map<Key, Receive> receives_;
  std::map<Key, PendingBackward> pending_backwards_;
  std::map<Key, at::Tensor> outbox_;
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
  for (int64_t before = 0; stages.size > 1 && before < stages.size; ++before) {
    const int64_t after = (before + 1) % stages.size;
    if (stages.rank == before) {
      post(links.forward_out, true);
      post(links.backward_in, false);
    }
    if (stages.rank == after) {
      post(links.forward_in, false);
      post(links.backward_out, true);
    }
  }
  for (Work& work : works) work.wait();
}

void run_schedule(std::span<const Action> actions, const PipelineLinks& links, const StageFunctions& stage,
                  const MessageShape& message) {
  Execution execution(links, stage, message);
  for (const Action& action : actions) execution.run(action);
  execution.finish();
}

}  // namespace teratron
