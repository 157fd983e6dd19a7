// How two ranks prove to each other, on a new TCP connection, that they know the job's secret:
//
//   caller -> called   Hello: purpose, both ranks, world size, random nonce
//   called -> caller   Challenge: random nonce, HMAC-SHA256(key, "called" Hello nonce)
//   caller -> called   Proof: HMAC-SHA256(key, "caller" Hello nonce text), text
//   called -> caller   Welcome
//
// Neither side reveals the key or accepts a recorded conversation, and a caller without the key gets nothing
// but the Challenge. Without a secret the key is known to all: then the greeting only excludes programs of
// other kinds. What follows on the connection is not encrypted.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/sha256.h"
#include "teratron/comm/transport/socket.h"

namespace teratron {

constexpr int64_t kMaxGreetingRanks = int64_t{1} << 20;
constexpr size_t kMaxGreetingText = 4096;

struct Greeting {
  enum class Purpose : uint32_t { rendezvous = 1, transport = 2 };
  Purpose purpose = Purpose::rendezvous;
  int64_t caller = 0, called = 0;  // ranks
  int64_t size = 0;                // world size, as the caller knows it
};

/// The calling side.
class Call {
 public:
  enum class Answer : uint8_t {
    greeted,
    nothing,       // the connection was closed, or no rank answered
    other_secret,  // a rank answered, of a job with another secret
  };
  Call(FileDescriptor connection, const Greeting& greeting, std::string key);
  /// Says hello and checks the answer. Waits until `deadline` at most.
  Answer greet(SteadyTime deadline);
  /// Completes the greeting, with a text of at most kMaxGreetingText bytes. False if there is no welcome: the
  /// called had to close connections, so call again.
  bool prove(const std::string& text, SteadyTime deadline);
  FileDescriptor& connection() { return connection_; }

 private:
  FileDescriptor connection_;
  const std::string key_;
  std::string hello_, nonce_;
};

/// A call that never waits, for event loops.
class Dial {
 public:
  /// `connection` from begin_connecting().
  Dial(FileDescriptor connection, const Greeting& greeting, std::string key);
  enum class Progress : uint8_t {
    waiting,  // until the connection is readable or, first, writable
    welcomed,
    closed,   // call again later
    refused,  // nothing listens there
  };
  Progress advance();
  FileDescriptor& connection() { return connection_; }

 private:
  bool write(const std::string& bytes) const;
  Progress read_up_to(size_t size);

  FileDescriptor connection_;
  std::string key_;
  std::string hello_;
  std::string received_;
  bool said_hello_ = false, proven_ = false;
};

/// The called side: accepts connections on a listening socket and greets all of them at once, so that those
/// that say nothing delay none of the others.
class Reception {
 public:
  struct Options {
    Greeting::Purpose purpose = Greeting::Purpose::rendezvous;
    int64_t called = 0;  // this rank
    std::string key;
    size_t max_waiting = 256;  // connections; beyond, the oldest that says nothing is closed
  };
  struct Caller {
    int64_t rank = 0;  // another than the called
    int64_t size = 0;  // 1 ... kMaxGreetingRanks
    std::string text;
    FileDescriptor connection;  // blocking
  };

  Reception(FileDescriptor listener, Options options);
  /// "address:port" where it listens.
  std::string address() const;
  /// Readable when next() may have something to do.
  int fd() const { return epoll_.get(); }
  /// The next caller that has proven to know the key; nullopt at the deadline. Throws Fault if there are no
  /// file descriptors.
  std::optional<Caller> next(SteadyTime deadline);
  /// "" or a sentence on the connections that did not: how many, from where, what was missing.
  std::string strangers() const;

 private:
  struct Visitor {
    FileDescriptor connection;
    std::string address;
    std::string received;
    std::string challenged;  // hello and nonce, once the challenge is sent
  };
  enum class Progress : uint8_t { waiting, proven, refused };

  void watch(const FileDescriptor& connection) const;
  void accept_waiting();
  void make_room();
  void refuse(const Visitor& visitor);
  static bool read_up_to(Visitor& visitor, size_t size);
  Progress advance(Visitor& visitor) const;
  bool challenge(Visitor& visitor) const;
  static std::optional<Caller> welcome(Visitor visitor);

  FileDescriptor listener_;
  Options options_;
  FileDescriptor epoll_;          // the listener and all visitors
  std::deque<Visitor> visitors_;  // oldest first
  int64_t refused_ = 0, unproven_ = 0;
  std::vector<std::string> addresses_;  // of some that were refused
};

/// Reads or writes exactly `size` bytes; false if the connection closes or `deadline` passes before.
bool read_exactly(const FileDescriptor& connection, void* data, size_t size, SteadyTime deadline);
bool write_exactly(const FileDescriptor& connection, const void* data, size_t size, SteadyTime deadline);

}  // namespace teratron
