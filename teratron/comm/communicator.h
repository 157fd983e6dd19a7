// One rank's endpoint of one group of ranks.
//
// Stream contract: a collective starts after the work already queued on the caller's current stream and runs
// on the communicator's own stream (GPU), or runs to its end before it returns (CPU ranks). Work::wait()
// makes the caller's current stream wait for it; it never blocks the host on a GPU. Tensors handed over stay
// alive inside the Work until wait() returns: whoever drops a Work without waiting keeps its tensors alive
// himself. Every rank of the group must issue the same collectives in the same order; a ledger of (sequence,
// name, shape) finds the rank that did not. After abort() every call throws Fault.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/host/cpu_reduce.h"
#include "teratron/comm/host/host_group.h"

namespace teratron {

/// A collective under way.
class Work {
 public:
  Work() = default;
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}
  /// The current stream (CPU: the caller) waits for the result. Calling it twice is harmless.
  void wait();

 private:
  std::function<void()> wait_;
};

/// One message of a grouped exchange between neighbours.
struct PointToPoint {
  at::Tensor tensor;
  int64_t peer = 0;  // rank within the group
  bool send = false;
};

class Communicator : public Peers {
 public:
  // Tensors are contiguous. Sums of bf16 and fp16 are accumulated in fp32 and in rank order on CPU ranks, so
  // results are the same on every rank and in every run.
  virtual Work all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// output = this rank's equal part of the reduced input: input.numel() == size() * output.numel().
  virtual Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  /// The same for an input that is only computed now: make(first, last) computes its parts [first, last), on the current
  /// stream, until all have been made. Where copy engines move them (gather_output), a part travels while the next is made.
  using MakeParts = std::function<void(int64_t first, int64_t last)>;
  virtual Work reduce_scatter_made(at::Tensor output, at::Tensor input, ReduceOp op, const MakeParts& make);
  /// output = all inputs, one after the other by rank: output.numel() == size() * input.numel().
  virtual Work all_gather(at::Tensor output, at::Tensor input) = 0;
  virtual Work broadcast(at::Tensor tensor, int64_t root) = 0;
  /// Equal parts: part r of input goes to rank r.
  virtual Work all_to_all(at::Tensor output, at::Tensor input) = 0;
  /// Sends and receives that may run at the same time; buffered, so that two ranks may send to each other.
  virtual Work exchange(std::vector<PointToPoint> messages) = 0;
  /// Memory, for the current stream alone, for the output of all_gathers whose input is this rank's slice of it. Where all
  /// GPUs of the group reach each other's memory, copy engines do these, which run beside matrix products. Every rank asks
  /// for the same sizes in the same order, and lets go of the tensors in the same order: keep them inside a function.
  virtual at::Tensor gather_output(at::IntArrayRef sizes, const at::TensorOptions& options);
  virtual void barrier() = 0;
  /// Makes every pending and later call of this group throw Fault, on this rank and on its peers.
  virtual void abort(const std::string& reason) = 0;
};

/// Group of one: every collective is the identity (reduce_scatter and all_gather copy).
std::shared_ptr<Communicator> self_communicator();

/// The same communicator without overlap: every collective is waited for where it is issued.
std::shared_ptr<Communicator> waiting_communicator(std::shared_ptr<Communicator> communicator);

/// All ranks of a job; makes the communicators of groups.
class World {
 public:
  virtual ~World() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// The communicator of `ranks` (global, ascending not required: position = rank in the group), which
  /// contain the caller. All members call it with the same list and in the same order of lists. Every call makes a
  /// communicator of its own (with a stream of its own on a GPU).
  virtual std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) = 0;
};

}  // namespace teratron
