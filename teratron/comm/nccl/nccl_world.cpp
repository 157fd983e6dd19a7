#include "teratron/comm/nccl/nccl_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>

#include "teratron/comm/nccl/nccl_communicator.h"

namespace teratron {
namespace {

constexpr std::chrono::milliseconds kLook{200};
constexpr std::chrono::seconds kTimeToThrow{2};  // for a rank that is not stuck to leave by itself

/// The communicators of one rank and two threads: one watches them, and may be kept waiting for ever by CUDA, as a rank
/// that calls it can; the other ends a process that cannot leave by itself.
class NcclWorld final : public World {
 public:
  NcclWorld(std::shared_ptr<ProcessRanks> ranks, NcclOptions options)
      : ranks_(std::move(ranks)), options_(std::move(options)) {
    TERATRON_ASSERT(options_.on_stuck);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(options_.gpu));
    hosts_ = std::make_unique<NcclCommunicator>(ranks_, all_ranks());
    watcher_ = std::thread([this] { watch(); });
    ender_ = std::thread([this] { end_if_stuck(); });
  }

  /// Nobody's buffers go away while a peer may still read from them.
  ~NcclWorld() override {
    if (!ranks_->failure()) leave_together();
    if (ranks_->failure()) close_all();  // or the process ends, where that takes for ever
    stop(watcher_, watched_);
    stop(ender_, ended_);
    close_all();
  }

  int64_t rank() const override { return ranks_->rank(); }
  int64_t size() const override { return ranks_->size(); }

  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override {
    auto communicator = std::make_shared<NcclCommunicator>(ranks_, ranks);
    const std::lock_guard lock(mutex_);
    communicators_.push_back(communicator);
    return communicator;
  }

 private:
  std::vector<std::shared_ptr<NcclCommunicator>> communicators() {
    const std::lock_guard lock(mutex_);
    return communicators_;
  }

  void close_all() {
    for (const auto& communicator : communicators()) communicator->close();
  }

  std::vector<int64_t> all_ranks() const {
    std::vector<int64_t> all(size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return all;
  }

  void leave_together() noexcept {
    try {
      c10::cuda::device_synchronize();
      hosts_->barrier();
    } catch (const std::exception& error) {
      ranks_->fail(error.what(), ExitCode::retryable);
    }
  }

  /// Tells `ranks_` what is wrong with the communicators.
  void look() noexcept {
    try {
      find_trouble();
    } catch (const std::exception& error) {  // CUDA tells of errors at any call
      ranks_->fail(error.what(), ExitCode::retryable);
    }
  }

  void find_trouble() {
    for (const auto& communicator : communicators()) {
      if (const auto trouble = communicator->trouble()) return ranks_->fail(*trouble, ExitCode::retryable);
    }
  }

  bool becomes(const bool& done, std::chrono::milliseconds within) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, within, [&] { return done; });
  }

  void stop(std::thread& thread, bool& done) {
    {
      const std::lock_guard lock(mutex_);
      done = true;
    }
    changed_.notify_all();
    thread.join();
  }

  void watch() {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(options_.gpu));
    while (!becomes(watched_, kLook)) {
      if (!ranks_->failure()) look();
    }
  }

  void end_if_stuck() {
    while (!becomes(ended_, kLook)) {
      const std::optional<Fault> failure = ranks_->failure();
      if (!failure) continue;
      if (!becomes(ended_, kTimeToThrow)) options_.on_stuck(*failure);
      return;
    }
  }

  std::shared_ptr<ProcessRanks> ranks_;
  const NcclOptions options_;
  std::unique_ptr<NcclCommunicator> hosts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators_;
  bool watched_ = false, ended_ = false;  // the threads may end
  std::thread watcher_, ender_;
};

}  // namespace

std::optional<std::string> nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<World> nccl_world(std::shared_ptr<ProcessRanks> ranks, NcclOptions options) {
  return std::make_unique<NcclWorld>(std::move(ranks), std::move(options));
}

}  // namespace teratron
