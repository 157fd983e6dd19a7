// The threads of a server: one for each connection, at most a number of them.
//
// They are started as they are needed: with libtorch's thread-local data each costs 200 kB.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <httplib.h>

namespace teratron {

class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t most) : most_(most) {}
  /// Blocks while all threads are busy: the connections that follow wait in the kernel.
  void enqueue(std::function<void()> work) override;
  /// Waits until all that was accepted is done.
  void shutdown() override;

 private:
  void run();
  void start_thread();

  std::mutex mutex_;
  std::condition_variable work_came_, thread_is_free_;
  size_t most_, free_ = 0;
  bool ends_ = false;
  std::deque<std::function<void()>> work_;
  std::vector<std::thread> threads_;
};

}  // namespace teratron
