#include "teratron/comm/communicator.h"

#include <deque>
#include <utility>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

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

  Work exchange(std::vector<PointToPoint> messages) override {
    std::deque<at::Tensor> sent;
    for (const PointToPoint& message : messages) {
      TERATRON_ASSERT(message.peer == 0);
      if (message.send) sent.push_back(message.tensor);
    }
    for (const PointToPoint& message : messages) {
      if (message.send) continue;
      TERATRON_ASSERT(!sent.empty(), "a receive from oneself without a send");
      copy(message.tensor, sent.front());
      sent.pop_front();
    }
    TERATRON_ASSERT(sent.empty(), "a send to oneself without a receive");
    return done();
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    done();
    return {bytes};
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

  std::string reason_;
};

}  // namespace

void Work::wait() {
  if (auto wait = std::exchange(wait_, nullptr)) wait();
}

std::shared_ptr<Communicator> self_communicator() {
  return std::make_shared<SelfCommunicator>();
}

}  // namespace teratron
