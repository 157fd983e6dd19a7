// One rank's endpoint of one group of ranks.
//
// Stream contract. GPU: a collective waits for the work queued on the caller's current stream and runs on the
// communicator's stream; Work::wait() makes the caller's current stream wait for it and never blocks the
// host. CPU: a collective completes before it returns. Work keeps its tensors alive until wait() returns; a
// caller that drops a Work without waiting must keep them alive.
//
// Every rank of the group must issue the same collectives in the same order. A flight recorder of (sequence
// number, operation, dtype, shape) identifies the rank that did not. After abort() every call throws Fault.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "teratron/comm/ranks/cpu_reduce.h"
#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// An asynchronous collective.
class Work {
 public:
  Work() = default;
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}
  /// Makes the current stream (CPU: the caller) wait for the result. Idempotent.
  void wait();

 private:
  std::function<void()> wait_;
};

/// A point-to-point operation of a batch.
struct P2POp {
  at::Tensor tensor;
  int64_t peer = 0;  // rank within the group
  bool send = false;
};

/// A block to the rank `distance` after this one in the ring of ranks, and one from the rank as far before.
/// Sizes may differ between ranks, and be zero. `received` must be the beginning of a tensor of
/// alloc_symmetric() that is large enough for what any rank receives.
struct ShiftOp {
  at::Tensor received;
  at::Tensor sent;
  int64_t distance = 0;
};

class Communicator : public HostGroup {
 public:
  // Tensors must be contiguous. On CPU ranks, reductions run in rank order and bf16 and fp16 accumulate in
  // fp32, so results are identical on every rank and in every run.
  virtual Work all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// output = this rank's equal part of the reduced input: input.numel() == size() * output.numel().
  virtual Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  /// reduce_scatter of an input that is still to be computed: produce(first, last) computes its parts [first,
  /// last) on the current stream; it is called until all parts are produced. With symmetric memory, copy
  /// engines send a part while the next one is computed; otherwise all parts are produced first.
  using ProduceParts = std::function<void(int64_t first, int64_t last)>;
  virtual Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                        const ProduceParts& produce);
  /// output = the inputs of all ranks, concatenated in rank order: output.numel() == size() * input.numel().
  virtual Work all_gather(at::Tensor output, at::Tensor input) = 0;
  virtual Work broadcast(at::Tensor tensor, int64_t root) = 0;
  /// Equal parts: part r of input goes to rank r.
  virtual Work all_to_all(at::Tensor output, at::Tensor input) = 0;
  /// Runs all operations concurrently. Sends are buffered, so two ranks may send to each other.
  virtual Work batch_isend_irecv(std::vector<P2POp> ops) = 0;
  /// Every rank sends to the ranks at these distances after it and receives from those as far before it. Into
  /// symmetric memory copy engines send, which need no SMs and so run beside attention, otherwise
  /// batch_isend_irecv() does.
  virtual Work shift(std::vector<ShiftOp> ops);
  /// Allocates the output of a shift, or of an all_gather whose input is this rank's slice of it, for use on
  /// the current stream only. If all GPUs of the group can access each other's memory, it is symmetric memory
  /// and copy engines run the collective, which then overlaps GEMMs. Ranks must allocate the same sizes, and
  /// free them, in the same order: keep these tensors local to a function.
  virtual at::Tensor alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Says that a CUDA graph with collectives of this group is on the current stream. A time-out is noticed
  /// and explained as one of a collective named `operation`. All ranks must call it.
  virtual void watch_replay(const std::string& operation);
  virtual void barrier() = 0;
  /// Makes every pending and later call of this group throw Fault, on all its ranks.
  virtual void abort(const std::string& reason) = 0;

  /// The rank `distance` after this one in the ring of ranks.
  int64_t rank_at(int64_t distance) const;
};

/// Group of one rank: every collective is the identity (reduce_scatter and all_gather copy).
std::shared_ptr<Communicator> self_communicator();

/// Waits for every collective where it is issued: no overlap.
std::shared_ptr<Communicator> synchronous_communicator(std::shared_ptr<Communicator> communicator);

/// All ranks of a job; creates the communicators of groups.
class World {
 public:
  virtual ~World() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Creates a communicator (on a GPU with its own stream) over these global ranks, which must include the
  /// caller; position = rank in the group. All members must create their groups with the same lists in the
  /// same order.
  virtual std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) = 0;
};

}  // namespace teratron
