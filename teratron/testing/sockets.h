// Sockets and descriptors as on a broken network or a machine that has run out of them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/transport/socket_transport.h"

namespace teratron {

inline SteadyTime in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

/// The message of the Fault that `body` throws.
inline std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::retryable);
    return fault.what();
  }
  return "no fault";
}

/// An address of this machine at which attempts to connect are neither accepted nor refused: the kernel drops
/// their packets, as the listener's queue is full.
class SilentListener {
 public:
  SilentListener() : listener_(listen_on("127.0.0.1", 0)) {
    EXPECT_EQ(listen(listener_.get(), /*backlog=*/0), 0);
    for (bool full = false; !full;) {
      waiting_.push_back(connect_to("127.0.0.1", port(), in(std::chrono::milliseconds(200))));
      full = waiting_.back().get() < 0;
    }
  }
  int port() const { return port_of(listener_); }

 private:
  FileDescriptor listener_;
  std::vector<FileDescriptor> waiting_;
};

/// While it lives, this process can open only `spare` more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(int spare = 0) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<FileDescriptor> lowest;
    for (int i = 0; i <= spare; ++i) lowest.emplace_back(dup(STDERR_FILENO));
    limit_ = lowest.back().get();
    const rlimit lowered{.rlim_cur = static_cast<rlim_t>(limit_), .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  int limit() const { return limit_; }

 private:
  rlimit before_{};
  int limit_ = 0;
};

}  // namespace teratron
