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
  watchdog_ = std::jthread([this, gpu](const std::stop_token& stop) { run_watchdog(stop, gpu); });
  monitor_ = std::jthread([this](const std::stop_token& stop) { run_monitor(stop); });
}

void NcclWatchdog::watch(std::shared_ptr<NcclCommunicator> communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(std::move(communicator));
}

void NcclWatchdog::close_all() {
  for (const auto& communicator : communicators()) communicator->close();
}

void NcclWatchdog::stop() {
  watchdog_ = std::jthread();
  monitor_ = std::jthread();
}

void NcclWatchdog::run_watchdog(const std::stop_token& stop, int gpu) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
  while (!sleep(stop, kCheckInterval)) {
    if (!backend_->failure()) check_async_errors();
  }
}

void NcclWatchdog::run_monitor(const std::stop_token& stop) {
  while (!sleep(stop, kCheckInterval)) {
    check_blocked_queries();
    const std::optional<Fault> failure = backend_->failure();
    if (!failure) continue;
    if (!sleep(stop, kExitTime)) on_hang_(*failure);
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

void NcclWatchdog::check_blocked_queries() noexcept {
  try {
    for (const auto& communicator : communicators()) {
      if (backend_->failure()) return;
      if (const auto error = communicator->check_blocked_query())
        return backend_->fail(*error, ExitCode::retryable);
    }
  } catch (const std::exception& error) {
    backend_->fail(error.what(), ExitCode::retryable);
  }
}

std::vector<std::shared_ptr<NcclCommunicator>> NcclWatchdog::communicators() {
  const std::lock_guard lock(mutex_);
  return communicators_;
}

bool NcclWatchdog::sleep(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, stop, time, [] { return false; });
  return stop.stop_requested();
}

}  // namespace teratron
