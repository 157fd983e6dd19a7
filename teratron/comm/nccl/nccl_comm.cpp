#include "teratron/comm/nccl/nccl_comm.h"

#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kInitPollInterval{20};

}  // namespace

void check_nccl(ncclResult_t result, ncclComm_t comm, const char* what) {
  if (result == ncclSuccess) return;
  const std::string reason = ncclGetLastError(comm);
  const std::string text = fmt::format("{}: {}: {}", what, ncclGetErrorString(result), reason);
  // NCCL only keeps its last warning, which may be unrelated to this error.
  const bool system_error = result == ncclUnhandledCudaError || result == ncclSystemError;
  if (system_error && reason.find("out of memory") != std::string::npos) {
    C10_THROW_ERROR(OutOfMemoryError,
                    text);  // as the caching allocator does: the handler reports the memory needed
  }
  throw Fault(text);
}

ncclUniqueId new_unique_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  return id;
}

std::string to_bytes(const ncclUniqueId& id) {
  return {id.internal, sizeof(id.internal)};
}

ncclUniqueId unique_id_from(const std::string& bytes, size_t offset) {
  ncclUniqueId id;
  TERATRON_ASSERT(bytes.size() >= offset + sizeof(id.internal));
  std::memcpy(id.internal, bytes.data() + offset, sizeof(id.internal));
  return id;
}

NcclComm::NcclComm(const InitOptions& options)
    : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;  // takes effect for symmetric memory (symmetric_memory.h)
  check_nccl(ncclCommInitRankConfig(&comm_, options.size, options.id, options.rank, &config), comm_,
             "ncclCommInitRankConfig");
}

NcclComm::List NcclComm::init_all_now(const std::vector<InitOptions>& options) {
  List comms;
  check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
  for (const InitOptions& each : options) comms.push_back(std::unique_ptr<NcclComm>(new NcclComm(each)));
  check_nccl(ncclGroupEnd(), nullptr, "ncclGroupEnd");
  return comms;
}

// On a detachable thread: NCCL waits indefinitely for the other ranks.
NcclComm::List NcclComm::init_all(const std::vector<InitOptions>& options, const ProcessBackend& backend) {
  const auto deadline = Clock::now() + backend.timeout();
  std::packaged_task<List()> task([options, gpu = c10::cuda::current_device()] {
    c10::cuda::set_device(gpu);
    return init_all_now(options);
  });
  std::future<List> comms = task.get_future();
  std::thread(std::move(task)).detach();
  while (comms.wait_for(kInitPollInterval) != std::future_status::ready) {
    backend.check();
    if (Clock::now() >= deadline) throw Fault("ncclCommInitRank timed out");
  }
  return comms.get();
}

std::string NcclComm::async_error() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t query = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t result = query == ncclSuccess ? state : query;
  if (result == ncclSuccess || result == ncclInProgress) return "";
  return fmt::format("NCCL: {}: {}", ncclGetErrorString(result), ncclGetLastError(comm_));
}

void NcclComm::abort() {
  if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
}

}  // namespace teratron
