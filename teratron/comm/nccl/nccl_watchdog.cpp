#include "teratron/comm/nccl/nccl_watchdog.h"

#include <optional>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>

namespace teratron {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{200};
constexpr std::chrono::seconds kExitTime{2};  // for a rank that does not hang to exit by itself

}  // namespace

NcclWatchdog::NcclWatchdog(std::shared_ptr<ProcessBackend> backend, int gpu,
                           std::function<void(const Fault&)> on_hang)
    : backend_(std::move(backend)), on_hang_(std::move(on_hang)) {
  TERATRON_ASSERT(on_hang_);
  watchdog_ = std::thread([this, gpu] { run_watchdog(gpu); });
  monitor_ = std::thread([this] { run_monitor(); });
}

void NcclWatchdog::watch(std::shared_ptr<NcclCommunicator> communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

void NcclWatchdog::close_all() {
  for (const auto& communicator : communicators()) communicator->close();
}

void NcclWatchdog::stop() {
  join(watchdog_, stop_watchdog_);
  join(monitor_, stop_monitor_);
}

void NcclWatchdog::run_watchdog(int gpu) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
  while (!wait_for(stop_watchdog_, kCheckInterval)) {
    if (!backend_->failure()) check_async_errors();
  }
}

void NcclWatchdog::run_monitor() {
  while (!wait_for(stop_monitor_, kCheckInterval)) {
    const std::optional<Fault> failure = backend_->failure();
    if (!failure) continue;
    if (!wait_for(stop_monitor_, kExitTime)) on_hang_(*failure);
    return;
  }
}

void NcclWatchdog::check_async_errors() noexcept {
  try {
    for (const auto& communicator : communicators()) {
      if (const auto error = communicator->check_async_error()) {
        return backend_->fail(*error, ExitCode::retryable);
      }
    }
  } catch (const std::exception& error) {  // any CUDA call may report an earlier asynchronous error
    backend_->fail(error.what(), ExitCode::retryable);
  }
}

std::vector<std::shared_ptr<NcclCommunicator>> NcclWatchdog::communicators() {
  const std::lock_guard lock(mutex_);
  return communicators_;
}

bool NcclWatchdog::wait_for(const bool& stopping, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return stopping; });
}

void NcclWatchdog::join(std::thread& thread, bool& stopping) {
  if (!thread.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping = true;
  }
  changed_.notify_all();
  thread.join();
}

}  // namespace teratron
