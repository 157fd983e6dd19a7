#include "teratron/serve/connection_threads.h"

#include <system_error>
#include <utility>

namespace teratron {

void ConnectionThreads::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
    most_ = threads_.size();  // the system has no more: the connection waits for one of these
  }
}

void ConnectionThreads::enqueue(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  thread_is_free_.wait(lock, [&] { return work_.size() < free_ || threads_.size() < most_; });
  work_.push_back(std::move(work));
  if (work_.size() > free_) start_thread();
  work_came_.notify_one();
}

void ConnectionThreads::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    free_ += 1;
    thread_is_free_.notify_one();
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
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace teratron
