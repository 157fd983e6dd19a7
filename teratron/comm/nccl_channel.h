// NCCL communicators with a stream of their own. Internal to nccl_world.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include "teratron/comm/process_ranks.h"

namespace teratron {

/// Throws Fault unless the result is success or "in progress".
void check_nccl(ncclResult_t result, ncclComm_t communicator, const char* what);

/// A non-blocking NCCL communicator and the high-priority stream that its work runs on.
class NcclChannel {
 public:
  struct Plan {
    ncclUniqueId id;
    int size;
    int rank;
  };
  /// Joins all at once, so that ranks may list their channels in any order. Throws Fault when the job fails
  /// or the time-out of `ranks` passes meanwhile.
  static std::vector<std::unique_ptr<NcclChannel>> join(const std::vector<Plan>& plans,
                                                        const ProcessRanks& ranks);

  ~NcclChannel() { abort(); }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  ncclComm_t communicator() const { return communicator_; }
  const c10::cuda::CUDAStream& stream() const { return stream_; }
  /// Waits until what was called last has been queued on the stream. Throws Fault as join() does, with what
  /// `overdue` says when the time is over.
  void settle(const ProcessRanks& ranks, const std::function<std::string()>& overdue) const;
  /// The error that a kernel or the network met; "" if none.
  std::string error() const;
  /// Ends kernels that are stuck. The channel cannot be used any more.
  void abort();

 private:
  explicit NcclChannel(const Plan& plan);

  ncclComm_t communicator_ = nullptr;
  c10::cuda::CUDAStream stream_;
};

/// A new identity for a channel, and its form for sending.
ncclUniqueId new_channel_id();
std::string to_bytes(const ncclUniqueId& id);
ncclUniqueId channel_id_from(const std::string& bytes, size_t offset = 0);

}  // namespace teratron
