#include "teratron/comm/communicator.h"

#include <deque>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/comm/forwarding_communicator.h"

namespace teratron {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }

  Work all_reduce(at::Tensor, ReduceOp) override { return done(); }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp) override { return copy(output, input); }
  Work all_gather(at::Tensor output, at::Tensor input) override { return copy(output, input); }
  Work broadcast(at::Tensor, int64_t root) override {
    TERATRON_ASSERT(root == 0);
    return done();
  }
  Work all_to_all(at::Tensor output, at::Tensor input) override { return copy(output, input); }

  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    const at::NoGradGuard no_grad;
    for (const P2POp& op : ops) {
      TERATRON_ASSERT(op.peer == 0, "peer {} of 1", op.peer);
      if (op.send) sent_.push_back(op.tensor.clone());
    }
    for (const P2POp& op : ops) {
      if (op.send) continue;
      TERATRON_ASSERT(!sent_.empty(), "a receive from this rank without a matching send");
      copy(op.tensor, sent_.front());
      sent_.pop_front();
    }
    return done();
  }

  void send_bytes(int64_t to, const std::string& /*bytes*/) override {
    TERATRON_ASSERT(false, "a message to rank {} of 1", to);
  }
  std::string receive_bytes(int64_t from) override {
    TERATRON_ASSERT(false, "a message from rank {} of 1", from);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    done();
    return {bytes};
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return all_gather_bytes(bytes); }
  std::string broadcast_bytes(const std::string& bytes) override {
    done();
    return bytes;
  }
  void barrier() override { done(); }
  void abort(const std::string& reason) override { reason_ = reason.empty() ? "aborted" : reason; }

 private:
  Work done() const {
    if (!reason_.empty()) throw Fault(reason_);
    return {};
  }

  Work copy(const at::Tensor& output, const at::Tensor& input) const {
    TERATRON_ASSERT(output.numel() == input.numel(), "{} and {} elements", output.numel(), input.numel());
    const at::NoGradGuard no_grad;
    if (output.data_ptr() != input.data_ptr()) output.view(-1).copy_(input.view(-1));
    return done();
  }

  std::deque<at::Tensor> sent_;
  std::string reason_;
};

class SynchronousCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                const ProduceParts& produce) override {
    return Communicator::reduce_scatter_pipelined(output, input, op, produce);  // no overlap here either
  }

 private:
  Work start(const char* /*operation*/, const std::function<Work()>& collective) override {
    collective().wait();
    return {};
  }
};

}  // namespace

void Work::wait() {
  if (auto wait = std::exchange(wait_, nullptr)) wait();
}

Work Communicator::reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                            const ProduceParts& produce) {
  produce(0, size());
  return reduce_scatter(std::move(output), std::move(input), op);
}

Work Communicator::shift(std::vector<ShiftOp> ops) {
  std::vector<P2POp> messages;
  for (const auto& [received, sent, distance] : ops) {
    // Empty ones too: a rank that had no message would not help its neighbours to connect.
    messages.push_back({.tensor = sent, .peer = rank_at(distance), .send = true});
    messages.push_back({.tensor = received, .peer = rank_at(-distance)});
  }
  return batch_isend_irecv(std::move(messages));
}

int64_t Communicator::rank_at(int64_t distance) const {
  return ((rank() + distance) % size() + size()) % size();
}

void Communicator::watch_replay(const std::string& /*operation*/) {}

at::Tensor Communicator::alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

std::shared_ptr<Communicator> self_communicator() {
  return std::make_shared<SelfCommunicator>();
}

std::shared_ptr<Communicator> synchronous_communicator(std::shared_ptr<Communicator> communicator) {
  return std::make_shared<SynchronousCommunicator>(std::move(communicator));
}

}  // namespace teratron
