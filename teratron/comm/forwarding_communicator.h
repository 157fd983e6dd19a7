// Base of communicators that change how another one's collectives start.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "teratron/comm/communicator.h"

namespace teratron {

/// Passes every call on, those that return Work through start() unless they are overridden.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }

  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    return start("all_reduce", [&] { return inner_->all_reduce(tensor, op); });
  }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return start("reduce_scatter", [&] { return inner_->reduce_scatter(output, input, op); });
  }
  Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                const ProduceParts& produce) override {
    return start("reduce_scatter",
                 [&] { return inner_->reduce_scatter_pipelined(output, input, op, produce); });
  }
  Work all_gather(at::Tensor output, at::Tensor input) override {
    return start("all_gather", [&] { return inner_->all_gather(output, input); });
  }
  Work broadcast(at::Tensor tensor, int64_t root) override {
    return start("broadcast", [&] { return inner_->broadcast(tensor, root); });
  }
  Work all_to_all(at::Tensor output, at::Tensor input) override {
    return start("all_to_all", [&] { return inner_->all_to_all(output, input); });
  }
  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    return start("messages", [&] { return inner_->batch_isend_irecv(std::move(ops)); });
  }
  Work shift(std::vector<ShiftOp> ops) override {
    return start("shift", [&] { return inner_->shift(std::move(ops)); });
  }

  at::Tensor alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return inner_->alloc_symmetric(sizes, options);
  }
  void send_bytes(int64_t to, const std::string& bytes) override { inner_->send_bytes(to, bytes); }
  std::string receive_bytes(int64_t from) override { return inner_->receive_bytes(from); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return inner_->all_gather_bytes(bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    return inner_->gather_bytes(bytes);
  }
  std::string broadcast_bytes(const std::string& bytes) override { return inner_->broadcast_bytes(bytes); }
  void watch_replay(const std::string& operation) override { inner_->watch_replay(operation); }
  void barrier() override { inner_->barrier(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  /// Calls `collective`. `operation` names it in messages.
  virtual Work start(const char* /*operation*/, const std::function<Work()>& collective) {
    return collective();
  }
  const std::shared_ptr<Communicator>& inner() const { return inner_; }

 private:
  std::shared_ptr<Communicator> inner_;
};

}  // namespace teratron
