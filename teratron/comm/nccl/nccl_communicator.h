// One GPU's endpoint of a group. Internal to nccl_world.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/cuda/CUDAEvent.h>

#include "teratron/comm/communicator.h"
#include "teratron/comm/nccl/copy_engine_reduce_scatter.h"
#include "teratron/comm/nccl/nccl_channel.h"

namespace teratron {

/// Collectives of a group run on one channel, in order. Neighbours of the group's ring (as pipeline stages
/// are) have a channel in each direction, so that a message never waits for another one; messages between
/// other ranks share the collectives' channel. Channels are made when the first collective or message is
/// issued: all ranks of the group must come to it.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<ProcessRanks> ranks, const std::vector<int64_t>& group);

  int64_t rank() const override { return meeting_->rank(); }
  int64_t size() const override { return meeting_->size(); }
  Work all_reduce(at::Tensor tensor, ReduceOp op) override;
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  Work all_gather(at::Tensor output, at::Tensor input) override;
  Work reduce_scatter_made(at::Tensor output, at::Tensor input, ReduceOp op, const MakeParts& make) override;
  at::Tensor gather_output(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  Work broadcast(at::Tensor tensor, int64_t root) override;
  Work all_to_all(at::Tensor output, at::Tensor input) override;
  Work exchange(std::vector<PointToPoint> messages) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;
  void barrier() override;
  void abort(const std::string& reason) override;

  /// For the watchdog: why the oldest work does not end (its time is over, or NCCL met an error); nothing
  /// while all is well.
  std::optional<std::string> trouble();
  /// Gives the channels up.
  void close();

 private:
  using Event = std::shared_ptr<c10::cuda::CUDAEvent>;
  using Lock = std::unique_lock<std::mutex>;
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  /// Work that this rank has come to.
  struct Pending {
    Call call;
    std::optional<int64_t> number;  // in the ledger
    std::chrono::steady_clock::time_point since;
    Event done = nullptr;  // null while NCCL is being called
  };

  Work collective(const Call& call, std::vector<at::Tensor> tensors, const Enqueue& enqueue);
  Event issue(const NcclChannel& channel, Pending pending, const Enqueue& enqueue);
  std::string in_words(const Pending& pending) const;
  /// The oldest work, once what is done has been struck off.
  std::optional<Pending> oldest();
  std::string channel_error();
  NcclChannel& main_channel();
  NcclWindows* windows();
  NcclPush* push_for(const at::Tensor& output, ReduceOp op);
  void make_ring();
  /// The channel of messages between these ranks: that of the ring, or the collectives'.
  NcclChannel& channel_for(int64_t from, int64_t to);

  std::shared_ptr<ProcessRanks> ranks_;
  std::unique_ptr<ProcessMeeting> meeting_;  // the ledger of what runs on the GPU
  std::shared_ptr<Communicator> hosts_;      // the same group for what does not
  std::mutex mutex_;                         // of the channels; held while NCCL is called
  std::unique_ptr<NcclChannel> main_;
  std::optional<NcclWindows> windows_;  // of the main channel, once wanted
  std::optional<NcclPush> push_;        // the same
  std::vector<std::unique_ptr<NcclChannel>> ring_;
  std::vector<std::pair<int64_t, int64_t>> ring_places_;  // (from, to) of each
  c10::cuda::CUDAEvent ready_;                            // the caller's stream, at the last call
  bool closed_ = false;
  std::mutex pending_mutex_;  // held for moments only
  std::deque<Pending> pending_;
};

}  // namespace teratron
