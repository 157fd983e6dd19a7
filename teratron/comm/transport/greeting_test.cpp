// What a rank lets in: real connections that lie, replay, stop in the middle, or are too many.
#include "teratron/comm/transport/greeting.h"

#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/testing/sockets.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;
using Purpose = Greeting::Purpose;

const std::string kKey(32, 'k');

class ReceptionTest : public testing::Test {
 protected:
  /// Rank 1 of 4.
  Reception reception(size_t max_waiting = 256) {
    FileDescriptor listener = listen_on("127.0.0.1", 0);
    port_ = port_of(listener);
    return {std::move(listener),
            {.purpose = Purpose::transport, .called = 1, .key = kKey, .max_waiting = max_waiting}};
  }

  FileDescriptor connect() const { return connect_to("127.0.0.1", port_, in(5s)); }

  /// A caller on another thread; its connection stays open.
  void call(const Greeting& greeting, const std::string& key, const std::string& text) {
    threads_.emplace_back([this, greeting, key, text] {
      Call call(connect(), greeting, key);
      answer_ = call.greet(in(5s));
      if (answer_ == Call::Answer::greeted) call.prove(text, in(5s));
      kept_ = std::move(call.connection());
    });
  }
  void TearDown() override {
    for (std::thread& thread : threads_) thread.join();
  }

  int port_ = 0;
  Call::Answer answer_ = Call::Answer::nothing;
  FileDescriptor kept_;
  std::vector<std::thread> threads_;
};

constexpr Greeting kRank3 = {.purpose = Purpose::transport, .caller = 3, .called = 1, .size = 4};

TEST_F(ReceptionTest, ARankIsWelcomeWithItsText) {
  Reception reception = this->reception();
  call(kRank3, kKey, "a text");
  const auto caller = reception.next(in(5s));
  ASSERT_TRUE(caller);
  EXPECT_EQ(caller->rank, 3);
  EXPECT_EQ(caller->size, 4);
  EXPECT_EQ(caller->text, "a text");
  EXPECT_EQ(reception.strangers(), "");
}

TEST_F(ReceptionTest, BytesAfterTheGreetingStayInTheConnection) {
  Reception reception = this->reception();
  threads_.emplace_back([this] {
    Call call(connect(), kRank3, kKey);
    ASSERT_EQ(call.greet(in(5s)), Call::Answer::greeted);
    ASSERT_TRUE(call.prove("", in(5s)));
    write_exactly(call.connection(), "frames", 6, in(5s));
  });
  const auto caller = reception.next(in(5s));
  ASSERT_TRUE(caller);
  std::string frames(6, ' ');
  EXPECT_TRUE(read_exactly(caller->connection, frames.data(), frames.size(), in(5s)));
  EXPECT_EQ(frames, "frames");
}

TEST_F(ReceptionTest, AnotherKeyIsRefusedOnBothSides) {
  Reception reception = this->reception();
  call(kRank3, std::string(32, 'x'), "");
  EXPECT_FALSE(reception.next(in(300ms)));
  threads_.front().join();
  threads_.clear();
  EXPECT_EQ(answer_, Call::Answer::other_secret);
  EXPECT_EQ(reception.strangers(),
            "Other connections to this port were refused, from 127.0.0.1: 1 did not know the job's secret");
}

/// It has the right form, and claims to be a rank.
TEST_F(ReceptionTest, AProofThatIsReplayedIsRefused) {
  Reception reception = this->reception();
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const FileDescriptor eavesdropper(pair[0]);
  FileDescriptor spoken(pair[1]);
  FileDescriptor true_connection = connect();
  // A rank whose words to the reception are recorded on the way.
  threads_.emplace_back([&] {
    Call call(std::move(spoken), kRank3, kKey);
    if (call.greet(in(5s)) == Call::Answer::greeted) call.prove("", in(5s));
  });
  const size_t hello = 64, challenge = 68, proof = 36, welcome = 4;
  std::string words(hello, ' '), answer(challenge, ' '), last(proof, ' ');
  ASSERT_TRUE(read_exactly(eavesdropper, words.data(), hello, in(5s)));
  write_exactly(true_connection, words.data(), hello, in(5s));
  threads_.emplace_back([&] {
    ASSERT_TRUE(read_exactly(true_connection, answer.data(), challenge, in(5s)));
    write_exactly(eavesdropper, answer.data(), challenge, in(5s));
    ASSERT_TRUE(read_exactly(eavesdropper, last.data(), proof, in(5s)));
    write_exactly(true_connection, last.data(), proof, in(5s));
    ASSERT_TRUE(read_exactly(true_connection, answer.data(), welcome, in(5s)));
    write_exactly(eavesdropper, answer.data(), welcome, in(5s));
  });
  ASSERT_TRUE(reception.next(in(5s))) << "what is recorded is right";
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const FileDescriptor again = connect();
  write_exactly(again, words.data(), hello, in(5s));
  write_exactly(again, last.data(), proof, in(5s));
  EXPECT_FALSE(reception.next(in(300ms)));
}

TEST_F(ReceptionTest, GreetingsForOthersAndImpossibleRanksAreRefused) {
  Reception reception = this->reception();
  const std::vector<Greeting> wrong = {
      {.purpose = Purpose::rendezvous, .caller = 3, .called = 1, .size = 4},
      {.purpose = Purpose::transport, .caller = 3, .called = 2, .size = 4},
      {.purpose = Purpose::transport, .caller = 7, .called = 1, .size = 4},
      {.purpose = Purpose::transport, .caller = -1, .called = 1, .size = 4},
      {.purpose = Purpose::transport, .caller = 3, .called = 1, .size = int64_t{1} << 62},
      {.purpose = Purpose::transport, .caller = 0, .called = 1, .size = -4}};
  for (const Greeting& greeting : wrong) call(greeting, kKey, "");
  EXPECT_FALSE(reception.next(in(500ms)));
  EXPECT_NE(reception.strangers().find("6 said nothing that a rank says"), std::string::npos)
      << reception.strangers();
}

TEST_F(ReceptionTest, SilentConnectionsDelayNothingAndAreCounted) {
  Reception reception = this->reception();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 14; ++i) silent.push_back(connect());
  const FileDescriptor half = connect();
  write_exactly(half, "GET / HTTP/1.1", 14, in(5s));
  const auto begin = std::chrono::steady_clock::now();
  call(kRank3, kKey, "");
  ASSERT_TRUE(reception.next(in(5s)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  EXPECT_FALSE(reception.next(in(100ms)));
  EXPECT_EQ(reception.strangers(),
            "Other connections to this port were refused, from 127.0.0.1: 15 said nothing that a rank says");
}

TEST_F(ReceptionTest, TheOldestOfTooManyConnectionsAreClosed) {
  Reception reception = this->reception(8);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect());
  EXPECT_FALSE(reception.next(in(300ms)));
  char byte = 0;
  EXPECT_EQ(recv(silent.front().get(), &byte, 1, 0), 0) << "closed";
  EXPECT_EQ(recv(silent.back().get(), &byte, 1, MSG_DONTWAIT), -1) << "open";
  call(kRank3, kKey, "");
  EXPECT_TRUE(reception.next(in(5s)));
  EXPECT_NE(reception.strangers().find("100 said nothing"), std::string::npos) << reception.strangers();
}

/// A rank whose process is slow to continue, as others keep calling.
TEST_F(ReceptionTest, SilentConnectionsDoNotTakeThePlaceOfOneThatSaidHello) {
  Reception reception = this->reception(8);
  Call call(connect(), kRank3, kKey);
  threads_.emplace_back([&] { answer_ = call.greet(in(5s)); });
  EXPECT_FALSE(reception.next(in(200ms)));
  threads_.back().join();
  threads_.pop_back();
  ASSERT_EQ(answer_, Call::Answer::greeted);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect());
  EXPECT_FALSE(reception.next(in(200ms)));
  threads_.emplace_back([&] { EXPECT_TRUE(call.prove("", in(5s))); });
  EXPECT_TRUE(reception.next(in(5s)));
  threads_.back().join();
  threads_.pop_back();
}

TEST_F(ReceptionTest, ACallerThatWasClosedGetsNoWelcome) {
  Reception reception = this->reception(1);
  Call call(connect(), kRank3, kKey);
  threads_.emplace_back([&] { answer_ = call.greet(in(5s)); });
  EXPECT_FALSE(reception.next(in(200ms)));
  threads_.back().join();
  threads_.pop_back();
  const FileDescriptor other = connect();
  EXPECT_FALSE(reception.next(in(200ms)));
  EXPECT_FALSE(call.prove("", in(5s))) << "so that it calls again";
}

TEST(Call, AProgramThatSaysAnythingElseIsNotARank) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  for (const std::string& words :
       {std::string(), std::string("HTTP/1.1 400 Bad Request"), std::string(500, 'x')}) {
    Call call(connect_to("127.0.0.1", port_of(listener), in(5s)), kRank3, kKey);
    const FileDescriptor answering(accept(listener.get(), nullptr, nullptr));
    write_exactly(answering, words.data(), words.size(), in(5s));
    EXPECT_EQ(call.greet(in(200ms)), Call::Answer::nothing) << words;
  }
}

}  // namespace
}  // namespace teratron
