// NCCL communicators with a stream of their own. Internal to nccl_world.
#pragma once

#include <memory>
#include <vector>

#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include "teratron/comm/host/process_ranks.h"

namespace teratron {

/// Throws Fault unless the result is success.
void check_nccl(ncclResult_t result, ncclComm_t communicator, const char* what);

/// An NCCL communicator and the high-priority stream that its work runs on.
///
/// The communicator is a blocking one: NCCL starts a thread for every call of a non-blocking one, which costs the host
/// some hundred microseconds a collective. A call that connects ranks for the first time, or finds the stream's queue
/// full, returns when that is done; the watchdog of nccl_world sees when it never is.
class NcclChannel {
 public:
  struct Plan {
    ncclUniqueId id;
    int size;
    int rank;
  };
  /// Joins all at once, so that ranks may list their channels in any order. Throws Fault when the job fails
  /// or the time-out of `ranks` passes meanwhile; the process can then only end.
  using Channels = std::vector<std::unique_ptr<NcclChannel>>;
  static Channels join(const std::vector<Plan>& plans, const ProcessRanks& ranks);

  ~NcclChannel() { abort(); }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  ncclComm_t communicator() const { return communicator_; }
  const c10::cuda::CUDAStream& stream() const { return stream_; }
  /// The error that a kernel or the network met; "" if none.
  std::string error() const;
  /// Ends kernels that are stuck (not copies that wait for a peer). The channel cannot be used any more.
  void abort();

 private:
  explicit NcclChannel(const Plan& plan);
  static Channels join_now(const std::vector<Plan>& plans);

  ncclComm_t communicator_ = nullptr;
  c10::cuda::CUDAStream stream_;
};

/// A new identity for a channel, and its form for sending.
ncclUniqueId new_channel_id();
std::string to_bytes(const ncclUniqueId& id);
ncclUniqueId channel_id_from(const std::string& bytes, size_t offset = 0);

}  // namespace teratron
