#include "teratron/testing/counted_ranks.h"

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {

namespace {

struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, std::deque<std::string>> from;
};

struct Job {
  explicit Job(int64_t ranks) : inboxes(static_cast<size_t>(ranks)) {}
  std::vector<Inbox> inboxes;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::exception_ptr first;

  void fail(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex);
      if (!first) first = std::move(error);
    }
    failed = true;
    for (Inbox& inbox : inboxes) {
      const std::lock_guard lock(inbox.mutex);
      inbox.changed.notify_all();
    }
  }
};

class CountedRank final : public CountedGroup {
 public:
  CountedRank(Job& job, int64_t rank) : job_(job), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(job_.inboxes.size()); }

  void send_bytes(int64_t to, const std::string& bytes) override {
    ++cost_.messages;
    cost_.sent += static_cast<int64_t>(bytes.size());
    Inbox& inbox = job_.inboxes.at(static_cast<size_t>(to));
    const std::lock_guard lock(inbox.mutex);
    inbox.from[rank_].push_back(bytes);
    inbox.changed.notify_all();
  }

  std::string receive_bytes(int64_t from) override {
    Inbox& inbox = job_.inboxes.at(static_cast<size_t>(rank_));
    std::unique_lock lock(inbox.mutex);
    std::deque<std::string>& box = inbox.from[from];
    inbox.changed.wait(lock, [&] { return !box.empty() || job_.failed; });
    if (box.empty()) throw Fault("another rank failed");
    std::string bytes = std::move(box.front());
    box.pop_front();
    ++cost_.rounds;
    cost_.received += static_cast<int64_t>(bytes.size());
    return bytes;
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return tree_all_gather(*this, bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    return tree_gather(*this, bytes);
  }
  std::string broadcast_bytes(const std::string& bytes) override { return broadcast_down_tree(*this, bytes); }

  RankCost cost() const override {
    timespec now = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    RankCost cost = cost_;
    cost.seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    return cost;
  }

 private:
  Job& job_;
  int64_t rank_;
  RankCost cost_;
};

}  // namespace

void run_counted_ranks(int64_t ranks, const std::function<void(CountedGroup&)>& body) {
  Job job(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&job, &body, rank] {
      try {
        CountedRank group(job, rank);
        body(group);
      } catch (...) {
        job.fail(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (job.first) std::rethrow_exception(job.first);
}

}  // namespace teratron
