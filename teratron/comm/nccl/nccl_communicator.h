// One GPU's endpoint of a group. Internal to nccl_world.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/cuda/CUDAEvent.h>

#include "teratron/comm/communicator.h"
#include "teratron/comm/host/process_group.h"
#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"
#include "teratron/comm/nccl/copy_engine_shift.h"
#include "teratron/comm/nccl/nccl_comm.h"
#include "teratron/comm/part_communicator.h"

namespace teratron {

/// Collectives run on the group's communicator, in order. Neighbours in the ring of ranks also have a
/// two-rank communicator per direction, a link, so that no message waits for another one; messages between
/// other ranks go over the group's communicator. Communicators are created lazily at the first collective or
/// message, which all ranks of the group must issue. In a group of two ranks, as pipeline links are, a
/// direction is opened by the first batch that uses it: such ranks must not first send to each other in
/// separate batches.
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

  /// For the watchdog: why the oldest pending work does not complete (timeout or NCCL error); nullopt if it
  /// may.
  std::optional<std::string> check_async_error();
  /// For a thread that must not call CUDA: the same if check_async_error() has been in a CUDA call for longer
  /// than the timeout.
  std::optional<std::string> check_blocked_query();
  /// Aborts the communicators.
  void close();

 private:
  using Event = std::shared_ptr<c10::cuda::CUDAEvent>;
  using Lock = std::unique_lock<std::mutex>;
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  struct PendingWork {
    CollectiveFingerprint fingerprint;
    std::optional<int64_t> sequence = {};  // nullopt: not recorded
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    Event done = nullptr;  // null while NCCL is being called
  };

  /// On the group's stream unless another one is given.
  Work collective(const CollectiveFingerprint& fingerprint, std::vector<at::Tensor> tensors,
                  const Enqueue& enqueue, std::optional<c10::cuda::CUDAStream> stream = std::nullopt);
  Event issue(const NcclComm& comm, PendingWork work, const Enqueue& enqueue,
              std::optional<c10::cuda::CUDAStream> other = std::nullopt);
  CollectiveFingerprint call_of(std::string operation, const at::Tensor& tensor) const;
  std::string describe(const PendingWork& work) const;
  std::optional<PendingWork> first_pending();
  bool is_done(const PendingWork& work);
  /// The oldest work that has not completed.
  std::optional<PendingWork> oldest();
  std::string async_error();
  NcclComm& group_comm();
  SymmetricMemory* symmetric_memory();
  CopyEngineReduceScatter* copy_engine_reduce_scatter(const at::Tensor& output, ReduceOp op);
  CopyEngineShift* copy_engine_shift();
  Work nccl_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op);
  using Ends = std::pair<int64_t, int64_t>;  // (from, to)
  std::vector<Ends> links_to_open(const std::vector<P2POp>& ops) const;
  void open_links(const std::vector<Ends>& ends);
  /// The communicator for messages between these ranks: a link's or the group's.
  NcclComm& comm_for(int64_t from, int64_t to);

  std::shared_ptr<ProcessBackend> backend_;
  std::unique_ptr<ProcessGroup> group_;  // records what runs on the GPU
  std::shared_ptr<Communicator> host_;   // the same group, for what does not
  std::mutex mutex_;                     // guards the communicators; held while NCCL is called
  std::unique_ptr<NcclComm> group_comm_;
  std::optional<SymmetricMemory> symmetric_memory_;                    // of group_comm_; created on demand
  std::optional<CopyEngineReduceScatter> copy_engine_reduce_scatter_;  // likewise
  std::optional<CopyEngineShift> copy_engine_shift_;                   // likewise
  NcclComm::List links_;
  std::vector<Ends> link_ends_;  // of each
  c10::cuda::CUDAEvent ready_;   // the caller's stream at the last call
  bool closed_ = false;
  std::mutex pending_mutex_;  // never held for long
  // Of the query that the watchdog is in; zero: none.
  std::atomic<std::chrono::steady_clock::time_point> query_since_ = std::chrono::steady_clock::time_point();
  std::deque<PendingWork> pending_;
};

}  // namespace teratron
