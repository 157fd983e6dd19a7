// One GPU's endpoint of a group. Internal to nccl_world.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/cuda/CUDAEvent.h>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/nccl/copy_engines.h"
#include "teratron/comm/nccl/nccl_comm.h"
#include "teratron/comm/nccl/nccl_links.h"
#include "teratron/comm/nccl/pending_queue.h"
#include "teratron/comm/part_communicator.h"

namespace teratron {

/// Collectives run on the group's communicator, in order. Messages between neighbours in the ring of ranks
/// run on links (nccl_links.h), so that no message waits for another one. Messages between other ranks run on
/// the group's communicator. All are created at the first collective or message, which all ranks of the group
/// must issue. In a group of two ranks, as pipeline links are, a direction is opened by the first batch that
/// uses it: such ranks must not first send to each other in separate batches.
class NcclCommunicator final : public Communicator, public PartRecorder {
 public:
  NcclCommunicator(std::shared_ptr<ProcessBackend> backend, const std::vector<int64_t>& ranks);

  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  Work all_reduce(at::Tensor tensor, ReduceOp op) override;
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  Work all_gather(at::Tensor output, at::Tensor input) override;
  Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                const ProduceParts& produce) override;
  at::Tensor alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  Work broadcast(at::Tensor tensor, int64_t root) override;
  Work all_to_all(at::Tensor output, at::Tensor input) override;
  Work batch_isend_irecv(std::vector<P2POp> ops) override;
  Work shift(std::vector<ShiftOp> ops) override;
  void send_bytes(int64_t to, const std::string& bytes) override;
  std::string receive_bytes(int64_t from) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;
  std::vector<std::string> gather_bytes(const std::string& bytes) override;
  std::string broadcast_bytes(const std::string& bytes) override;
  void set_part(const std::string& part) override;
  void watch_replay(const std::string& operation) override;
  void barrier() override;
  void abort(const std::string& reason) override;

  /// For the watchdog: why the oldest pending work does not complete (time-out or NCCL error); nullopt if it
  /// may.
  std::optional<std::string> check_async_error();
  /// For a thread that must not call CUDA: why not, if check_async_error() has been in a CUDA call for longer
  /// than the time-out.
  std::optional<std::string> check_blocked_query();
  /// Aborts the communicators.
  void close();

 private:
  using Event = std::shared_ptr<c10::cuda::CUDAEvent>;
  using Lock = std::unique_lock<std::mutex>;
  using Enqueue = NcclLinks::Enqueue;

  Lock lock_open();
  /// On the group's stream unless another one is given.
  Work collective(const CollectiveFingerprint& fingerprint, std::vector<at::Tensor> tensors,
                  const Enqueue& enqueue, std::optional<c10::cuda::CUDAStream> stream = std::nullopt);
  Event issue(const NcclComm& comm, PendingWork work, const Enqueue& enqueue,
              std::optional<c10::cuda::CUDAStream> other = std::nullopt);
  CollectiveFingerprint call_of(std::string operation, const at::Tensor& tensor) const;
  std::string describe(const PendingWork& work) const;
  std::string async_error();
  NcclComm& group_comm();
  CopyEngines& copy_engines();
  CopyEngineReduceScatter* copy_engine_reduce_scatter(const at::Tensor& output, ReduceOp op);
  Work nccl_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op);
  /// The communicator for messages between these ranks: a link's or the group's.
  const NcclComm& comm_for(int64_t from, int64_t to);

  std::shared_ptr<ProcessBackend> backend_;
  std::unique_ptr<ProcessGroup> group_;  // records what runs on the GPU
  std::shared_ptr<Communicator> host_;   // the same group, for what does not
  std::mutex mutex_;                     // guards the communicators; held while NCCL is called
  std::unique_ptr<NcclComm> group_comm_;
  std::optional<CopyEngines> copy_engines_;  // of group_comm_; created on demand
  NcclLinks links_;
  c10::cuda::CUDAEvent ready_;  // the caller's stream at the last call
  bool closed_ = false;
  PendingQueue pending_;
};

}  // namespace teratron
