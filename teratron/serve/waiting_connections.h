// Connections for which all threads are taken. They wait for one, the first that came first; those that ask
// for a probe, such as GET /health, are answered at once by a thread that is kept for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace teratron {

struct WaitingOptions {
  size_t most = 1024;               // more wait in the kernel
  std::vector<std::string> probes;  // paths
  /// Gives the connection to a free thread; false: there is none.
  std::function<bool(int socket)> serve;
  /// Answers the one request of a connection, which has arrived, and ends it.
  std::function<void(int socket)> answer_probe;
};

class WaitingConnections {
 public:
  explicit WaitingConnections(WaitingOptions options) : options_(std::move(options)) {}
  ~WaitingConnections() { end(); }
  WaitingConnections(const WaitingConnections&) = delete;
  WaitingConnections& operator=(const WaitingConnections&) = delete;

  /// Takes over the socket. Blocks while too many wait.
  void add(int socket);
  bool empty() const;
  /// Closes those that still wait.
  void end();

 private:
  struct Entry {
    int socket;
    bool ordinary = false;  // it has asked for something else than a probe
  };
  enum class Kind { unknown, ordinary, probe, closed };

  void run();
  void serve_first();
  /// The connection of a probe, which is no longer among those that wait; -1: none.
  int take_probe();
  Kind kind_of(int socket) const;
  bool is_probe(std::string_view request) const;

  WaitingOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable came_, left_;
  std::deque<Entry> waiting_;
  bool ends_ = false;
  std::thread thread_;  // started for the first
};

}  // namespace teratron
