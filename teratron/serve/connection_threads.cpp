#include "teratron/serve/connection_threads.h"

#include <system_error>
#include <utility>

namespace teratron {

bool ConnectionThreads::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
    return true;
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
    most_ = threads_.size();  // the system has no more: the connection waits for one of these
    return false;
  }
}

bool ConnectionThreads::start(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (work_.size() >= free_ && (threads_.size() >= most_ || !start_thread())) return false;
  work_.push_back(std::move(work));
  work_came_.notify_one();
  return true;
}

void ConnectionThreads::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    free_ += 1;
    work_came_.wait(lock, [&] { return ends_ || !work_.empty(); });
    free_ -= 1;
    if (work_.empty()) return;
    const std::function<void()> work = std::exchange(work_.front(), nullptr);
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

void ConnectionThreads::shutdown() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    threads.swap(threads_);
  }
  work_came_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace teratron
