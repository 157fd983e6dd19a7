#include "teratron/comm/nccl/pending_queue.h"

#include <utility>

namespace teratron {

using Clock = std::chrono::steady_clock;

PendingWork& PendingQueue::add(PendingWork work) {
  const std::lock_guard lock(mutex_);
  return works_.emplace_back(std::move(work));  // deque: the address is stable
}

void PendingQueue::set_done(PendingWork& work, std::shared_ptr<c10::cuda::CUDAEvent> done) {
  const std::lock_guard lock(mutex_);
  work.done = std::move(done);
}

std::optional<PendingWork> PendingQueue::front() {
  const std::lock_guard lock(mutex_);
  if (works_.empty()) return std::nullopt;
  return works_.front();
}

/// Without the lock, as the query may block.
bool PendingQueue::has_completed(const PendingWork& work) {
  if (!work.done) return false;
  query_since_ = Clock::now();
  const bool completed = work.done->query();
  query_since_ = Clock::time_point();
  return completed;
}

std::optional<PendingWork> PendingQueue::oldest_incomplete() {
  while (true) {
    std::optional<PendingWork> work = front();
    if (!work || !has_completed(*work)) return work;
    const std::lock_guard lock(mutex_);
    if (!works_.empty()) works_.pop_front();
  }
}

std::optional<Clock::time_point> PendingQueue::query_since() const {
  const Clock::time_point since = query_since_;
  if (since == Clock::time_point()) return std::nullopt;
  return since;
}

void PendingQueue::clear() {
  const std::lock_guard lock(mutex_);
  works_.clear();
}

}  // namespace teratron
