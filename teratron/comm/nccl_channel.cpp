#include "teratron/comm/nccl_channel.h"

#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void check_nccl(ncclResult_t result, ncclComm_t communicator, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw Fault(fmt::format("{}: {}: {}", what, ncclGetErrorString(result), ncclGetLastError(communicator)));
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
  config.blocking = 0;
  check_nccl(ncclCommInitRankConfig(&communicator_, plan.size, plan.id, plan.rank, &config), communicator_,
             "ncclCommInitRankConfig");
}

std::vector<std::unique_ptr<NcclChannel>> NcclChannel::join(const std::vector<Plan>& plans,
                                                            const ProcessRanks& ranks) {
  std::vector<std::unique_ptr<NcclChannel>> channels;
  check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart");
  for (const Plan& plan : plans) channels.push_back(std::unique_ptr<NcclChannel>(new NcclChannel(plan)));
  check_nccl(ncclGroupEnd(), nullptr, "ncclGroupEnd");
  for (const auto& channel : channels) {
    channel->settle(ranks, [] { return "a communicator of NCCL was not made in time"; });
  }
  return channels;
}

void NcclChannel::settle(const ProcessRanks& ranks, const std::function<std::string()>& overdue) const {
  const auto deadline = Clock::now() + ranks.timeout();
  while (true) {
    ncclResult_t state = ncclInProgress;
    check_nccl(ncclCommGetAsyncError(communicator_, &state), communicator_, "ncclCommGetAsyncError");
    check_nccl(state, communicator_, "NCCL");
    if (state == ncclSuccess) return;
    ranks.check();
    if (Clock::now() >= deadline) throw Fault(overdue());
    std::this_thread::yield();
  }
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
