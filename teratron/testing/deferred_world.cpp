#include "teratron/testing/deferred_world.h"

#include <limits>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/comm/forwarding_communicator.h"

namespace teratron {
namespace {

void fill_nan(const at::Tensor& tensor) {
  if (tensor.is_floating_point()) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
}

class DeferredCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    return in_place(tensor, [=, inner = inner()] { inner->all_reduce(tensor, op).wait(); });
  }
  Work broadcast(at::Tensor tensor, int64_t root) override {
    return in_place(tensor, [=, inner = inner()] { inner->broadcast(tensor, root).wait(); });
  }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return out_of_place(output, input, [=, inner = inner()](const at::Tensor& saved) {
      inner->reduce_scatter(output, saved, op).wait();
    });
  }
  Work all_gather(at::Tensor output, at::Tensor input) override {
    const at::Tensor own = input.clone();
    Work work = out_of_place(output, input, [=, inner = inner()](const at::Tensor& saved) {
      inner->all_gather(output, saved).wait();
    });
    const at::NoGradGuard no_grad;
    // Not a change for autograd, which may have saved the input.
    input.variable_data().copy_(own);  // if in place, this slice of the output is not written
    return work;
  }
  Work all_to_all(at::Tensor output, at::Tensor input) override {
    return out_of_place(output, input, [=, inner = inner()](const at::Tensor& saved) {
      inner->all_to_all(output, saved).wait();
    });
  }

  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    std::vector<P2POp> received;
    for (P2POp& op : ops) {
      if (op.send) {
        inner()->batch_isend_irecv({op}).wait();
      } else {
        fill_nan(op.tensor);
        received.push_back(std::move(op));
      }
    }
    return Work([received, inner = inner()] { inner->batch_isend_irecv(received).wait(); });
  }

  Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                const ProduceParts& produce) override {
    return Communicator::reduce_scatter_pipelined(output, input, op, produce);  // by reduce_scatter()
  }
  Work shift(std::vector<ShiftOp> ops) override {
    return Communicator::shift(std::move(ops));  // by batch_isend_irecv()
  }

 private:
  static Work in_place(const at::Tensor& tensor, std::function<void()> run) {
    const at::NoGradGuard no_grad;
    const at::Tensor saved = tensor.clone();
    fill_nan(tensor);
    return Work([tensor, saved, run = std::move(run)] {
      const at::NoGradGuard no_grad_later;
      tensor.copy_(saved);
      run();
    });
  }

  /// Output and input may overlap.
  static Work out_of_place(const at::Tensor& output, const at::Tensor& input,
                           std::function<void(const at::Tensor&)> run) {
    const at::NoGradGuard no_grad;
    const at::Tensor saved = input.clone();
    fill_nan(output);
    return Work([saved, run = std::move(run)] { run(saved); });
  }
};

}  // namespace

std::shared_ptr<Communicator> DeferredWorld::group(const std::vector<int64_t>& ranks) {
  return std::make_shared<DeferredCommunicator>(world_.group(ranks));
}

}  // namespace teratron
