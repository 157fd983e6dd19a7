#include "teratron/serve/connection_threads.h"

#include <atomic>
#include <chrono>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/serve/semaphore.h"
#include "teratron/serve/waiting_connections.h"

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
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    while (!threads.start([&] { crowd.visit(1ms); })) {
      ++refused;
      std::this_thread::sleep_for(100us);
    }
  }
  threads.shutdown();
  EXPECT_EQ(crowd.visits(), 100);
  EXPECT_LE(crowd.most(), 4);
  EXPECT_GT(refused, 0);
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
    ASSERT_TRUE(threads.start(note));
    while (done <= i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_LE(ids.size(), 3U);  // a thread may be late to wait again
  Crowd crowd;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(threads.start([&] { crowd.visit(300ms); }));
  threads.shutdown();
  EXPECT_EQ(crowd.most(), 20);
}

// One end of each connection is the server's.
class Clients {
 public:
  explicit Clients(WaitingConnections& waiting) : waiting_(waiting) {}
  ~Clients() {
    for (const int client : clients_) ::close(client);
  }
  void connect(const std::string& says) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    clients_.push_back(ends[1]);
    send(clients_.size() - 1, says);
    waiting_.add(ends[0]);
  }
  void send(size_t client, const std::string& says) {
    ASSERT_EQ(::write(clients_[client], says.data(), says.size()), static_cast<ssize_t>(says.size()));
  }
  bool is_closed(size_t client) const {
    char byte = 0;
    return ::recv(clients_[client], &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }

 private:
  WaitingConnections& waiting_;
  std::vector<int> clients_;
};

TEST(WaitingConnections, AnswerProbesThoughNoThreadIsFree) {
  const std::string rest = " HTTP/1.1\r\nHost: a\r\n\r\n";
  std::atomic<int> answered = 0, served = 0, places = 0;
  WaitingConnections waiting({.probes = {"/health"},
                              .serve =
                                  [&](int socket) {
                                    if (places == 0) return false;
                                    --places;
                                    ++served;
                                    ::close(socket);
                                    return true;
                                  },
                              .answer_probe =
                                  [&](int socket) {
                                    ::close(socket);
                                    ++answered;
                                  }});
  Clients clients(waiting);
  const auto wait_for = [](const auto& condition) {
    for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  };
  for (const char* says : {"", "GET /v1/models", "GET /healthy", "GE", "POST /health"})
    clients.connect(says + rest);
  clients.connect("GET /health");  // the rest comes later
  clients.connect("GET /health" + rest);
  clients.connect("HEAD /health" + rest);
  EXPECT_TRUE(wait_for([&] { return answered == 2; }));
  EXPECT_TRUE(clients.is_closed(6) && clients.is_closed(7));
  clients.send(5, rest);
  EXPECT_TRUE(wait_for([&] { return answered == 3; }));
  places = 2;
  EXPECT_TRUE(wait_for([&] { return served == 2; }));
  EXPECT_TRUE(clients.is_closed(0) && clients.is_closed(1)) << "who came first is served first";
  EXPECT_FALSE(clients.is_closed(2));
  waiting.end();
  EXPECT_TRUE(clients.is_closed(2) && clients.is_closed(4));
  EXPECT_EQ(answered, 3);
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
