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

namespace teratron {

class ConnectionThreads {
 public:
  explicit ConnectionThreads(size_t most) : most_(most) {}
  ~ConnectionThreads() { shutdown(); }
  ConnectionThreads(const ConnectionThreads&) = delete;
  ConnectionThreads& operator=(const ConnectionThreads&) = delete;

  /// False: all threads are busy.
  bool start(std::function<void()> work);
  /// Waits until all that was started is done.
  void shutdown();

 private:
  void run();
  bool start_thread();

  std::mutex mutex_;
  std::condition_variable work_came_;
  size_t most_, free_ = 0;
  bool ends_ = false;
  std::deque<std::function<void()>> work_;
  std::vector<std::thread> threads_;
};

}  // namespace teratron
