#include "teratron/serve/connection_threads.h"

#include <atomic>
#include <chrono>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/serve/semaphore.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

// How many do something at once, and how many did at most.
class Crowd {
 public:
  void visit(std::chrono::milliseconds time) {
    const int now = ++inside_;
    int most = most_;
    while (most < now && !most_.compare_exchange_weak(most, now)) {
    }
    std::this_thread::sleep_for(time);
    --inside_;
    ++visits_;
  }
  int most() const { return most_; }
  int visits() const { return visits_; }

 private:
  std::atomic<int> inside_ = 0, most_ = 0, visits_ = 0;
};

TEST(ConnectionThreads, AreAtMostSoManyAndDoAllThatWasAccepted) {
  Crowd crowd;
  ConnectionThreads threads(4);
  for (int i = 0; i < 100; ++i) threads.enqueue([&] { crowd.visit(1ms); });
  threads.shutdown();
  EXPECT_EQ(crowd.visits(), 100);
  EXPECT_LE(crowd.most(), 4);
}

TEST(ConnectionThreads, AreStartedWhenTheOthersAreBusy) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> done = 0;
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
    ++done;
  };
  ConnectionThreads threads(64);
  for (int i = 0; i < 20; ++i) {  // one after the other
    threads.enqueue(note);
    while (done <= i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_LE(ids.size(), 3U);  // a thread may be late to wait again
  Crowd crowd;
  for (int i = 0; i < 20; ++i) threads.enqueue([&] { crowd.visit(300ms); });
  threads.shutdown();
  EXPECT_EQ(crowd.most(), 20);
}

TEST(Semaphore, NoReleaseIsMissed) {
  Crowd crowd;
  Semaphore semaphore(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const Semaphore::Permit permit(semaphore);
        crowd.visit(0ms);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(crowd.visits(), 16 * 200);
  EXPECT_LE(crowd.most(), 3);
}

}  // namespace
}  // namespace teratron
