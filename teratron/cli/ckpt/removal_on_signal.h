// Signals that end a conversion.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace teratron {

/// While it lives, SIGTERM, SIGINT and SIGHUP, unless they are ignored, end the process as they do by
/// default, after it has removed the folders that it had not finished (base/partial_folder.h). To be made
/// before other threads, which must not receive these signals.
class RemovalOnSignal {
 public:
  RemovalOnSignal();
  ~RemovalOnSignal();
  RemovalOnSignal(const RemovalOnSignal&) = delete;
  RemovalOnSignal& operator=(const RemovalOnSignal&) = delete;

 private:
  void wait() const;

  sigset_t signals_{}, previous_{};
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace teratron
