#include "teratron/testing/deferred_world.h"

#include <limits>
#include <utility>

#include <ATen/ATen.h>

namespace teratron {
namespace {

void spoil(const at::Tensor& tensor) {
  if (tensor.is_floating_point()) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
}

class LateCommunicator final : public Communicator {
 public:
  explicit LateCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }

  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    return in_place(tensor, [=, inner = inner_] { inner->all_reduce(tensor, op).wait(); });
  }
  Work broadcast(at::Tensor tensor, int64_t root) override {
    return in_place(tensor, [=, inner = inner_] { inner->broadcast(tensor, root).wait(); });
  }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return moved(output, input, [=, inner = inner_](const at::Tensor& given) {
      inner->reduce_scatter(output, given, op).wait();
    });
  }
  Work all_gather(at::Tensor output, at::Tensor input) override {
    const at::Tensor own = input.clone();
    Work work = moved(output, input, [=, inner = inner_](const at::Tensor& given) {
      inner->all_gather(output, given).wait();
    });
    const at::NoGradGuard no_grad;
    input.copy_(own);  // in place, it is the part of the output that is not written
    return work;
  }
  Work all_to_all(at::Tensor output, at::Tensor input) override {
    return moved(output, input,
                 [=, inner = inner_](const at::Tensor& given) { inner->all_to_all(output, given).wait(); });
  }

  Work exchange(std::vector<PointToPoint> messages) override {
    std::vector<PointToPoint> received;
    for (PointToPoint& message : messages) {
      if (message.send) {
        inner_->exchange({message}).wait();
      } else {
        spoil(message.tensor);
        received.push_back(std::move(message));
      }
    }
    return Work([received, inner = inner_] { inner->exchange(received).wait(); });
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return inner_->all_gather_bytes(bytes);
  }
  void barrier() override { inner_->barrier(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  static Work in_place(const at::Tensor& tensor, std::function<void()> act) {
    const at::NoGradGuard no_grad;
    const at::Tensor given = tensor.clone();
    spoil(tensor);
    return Work([tensor, given, act = std::move(act)] {
      const at::NoGradGuard no_grad_later;
      tensor.copy_(given);
      act();
    });
  }

  /// The output may be a part of the input, or the other way round.
  static Work moved(const at::Tensor& output, const at::Tensor& input,
                    std::function<void(const at::Tensor&)> act) {
    const at::NoGradGuard no_grad;
    const at::Tensor given = input.clone();
    spoil(output);
    return Work([given, act = std::move(act)] { act(given); });
  }

  std::shared_ptr<Communicator> inner_;
};

}  // namespace

std::shared_ptr<Communicator> LateWorld::group(const std::vector<int64_t>& ranks) {
  return std::make_shared<LateCommunicator>(world_.group(ranks));
}

}  // namespace teratron
