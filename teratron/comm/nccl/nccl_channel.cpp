#include "teratron/comm/nccl/nccl_channel.h"

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
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

void check_nccl(ncclResult_t result, ncclComm_t communicator, const char* what) {
  if (result == ncclSuccess) return;
  const std::string reason = ncclGetLastError(communicator);
  const std::string text = fmt::format("{}: {}: {}", what, ncclGetErrorString(result), reason);
  // NCCL knows its last warning alone, which may be of something that it has got over since.
  const bool of_system = result == ncclUnhandledCudaError || result == ncclSystemError;
  if (of_system && reason.find("out of memory") != std::string::npos) {
    C10_THROW_ERROR(OutOfMemoryError, text);  // as the allocator: whoever catches it says what was needed
  }
  throw Fault(text);
}

ncclUniqueId new_channel_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  return id;
}

std::string to_bytes(const ncclUniqueId& id) {
  return {id.internal, sizeof(id.internal)};
}

ncclUniqueId channel_id_from(const std::string& bytes, size_t offset) {
  ncclUniqueId id;
  TERATRON_ASSERT(bytes.size() >= offset + sizeof(id.internal));
  std::memcpy(id.internal, bytes.data() + offset, sizeof(id.internal));
  return id;
}

NcclChannel::NcclChannel(const Plan& plan) : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;  // where windows allow it (nccl_windows.h)
  check_nccl(ncclCommInitRankConfig(&communicator_, plan.size, plan.id, plan.rank, &config), communicator_,
             "ncclCommInitRankConfig");
}

NcclChannel::Channels NcclChannel::join_now(const std::vector<Plan>& plans) {
  Channels channels;
  check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
  for (const Plan& plan : plans) channels.push_back(std::unique_ptr<NcclChannel>(new NcclChannel(plan)));
  check_nccl(ncclGroupEnd(), nullptr, "ncclGroupEnd");
  return channels;
}

// On a thread that can be left behind: NCCL waits for the other ranks for ever.
NcclChannel::Channels NcclChannel::join(const std::vector<Plan>& plans, const ProcessRanks& ranks) {
  const auto deadline = Clock::now() + ranks.timeout();
  std::packaged_task<Channels()> task([plans, gpu = c10::cuda::current_device()] {
    c10::cuda::set_device(gpu);
    return join_now(plans);
  });
  std::future<Channels> channels = task.get_future();
  std::thread(std::move(task)).detach();
  while (channels.wait_for(kLook) != std::future_status::ready) {
    ranks.check();
    if (Clock::now() >= deadline) throw Fault("a communicator of NCCL was not made in time");
  }
  return channels.get();
}

std::string NcclChannel::error() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  const ncclResult_t worse = asked == ncclSuccess ? state : asked;
  if (worse == ncclSuccess || worse == ncclInProgress) return "";
  return fmt::format("NCCL: {}: {}", ncclGetErrorString(worse), ncclGetLastError(communicator_));
}

void NcclChannel::abort() {
  if (communicator_) ncclCommAbort(std::exchange(communicator_, nullptr));
}

}  // namespace teratron
