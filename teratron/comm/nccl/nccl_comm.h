// RAII of ncclComm_t. Internal to nccl_world.
#pragma once

#include <memory>
#include <vector>

#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include "teratron/comm/host/process_backend.h"

namespace teratron {

/// Throws Fault unless the result is success.
void check_nccl(ncclResult_t result, ncclComm_t comm, const char* what);

/// An ncclComm_t and the high-priority stream that its kernels run on.
///
/// It is blocking (config.blocking = 1): NCCL starts a thread for every call of a nonblocking one, which
/// costs the host some hundred microseconds per collective. A call that first connects ranks, or finds the
/// stream's queue full, returns when that is done; NcclWatchdog detects if it never is.
class NcclComm {
 public:
  struct InitOptions {
    ncclUniqueId id;
    int size;
    int rank;
  };
  using List = std::vector<std::unique_ptr<NcclComm>>;
  /// Initializes all of them in one NCCL group, so that ranks may list them in any order. Throws Fault if the
  /// job fails or the timeout of `backend` passes meanwhile; the process must then exit.
  static List init_all(const std::vector<InitOptions>& options, const ProcessBackend& backend);

  ~NcclComm() { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }
  const c10::cuda::CUDAStream& stream() const { return stream_; }
  /// ncclCommGetAsyncError as text; "" if none.
  std::string async_error() const;
  /// Ends kernels that are stuck (not copies that wait for a peer). Unusable afterwards.
  void abort();

 private:
  explicit NcclComm(const InitOptions& options);
  static List init_all_now(const std::vector<InitOptions>& options);

  ncclComm_t comm_ = nullptr;
  c10::cuda::CUDAStream stream_;
};

ncclUniqueId new_unique_id();
std::string to_bytes(const ncclUniqueId& id);
ncclUniqueId unique_id_from(const std::string& bytes, size_t offset = 0);

}  // namespace teratron
