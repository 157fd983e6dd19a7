// httplib's server with limits: connections, the size of a request, and times (connection.h).
//
// A thread serves one connection; those beyond the limit wait (waiting_connections.h). Requests are read
// strictly (request_head.h): after one that is not HTTP the connection ends, since where the next one begins
// is not known.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "teratron/comm/transport/port_range.h"
#include "teratron/serve/connection.h"
#include "teratron/serve/connection_threads.h"
#include "teratron/serve/waiting_connections.h"

namespace teratron {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 5000;                      // 0: any
  std::optional<PortRange> ports = {};  // with port 0: any of these
  size_t max_connections = 512;
  size_t max_body_bytes = size_t{16} << 20U;
  std::vector<std::string> probes = {};  // paths that are answered though all connections are taken
  ConnectionTimes times = {};
  std::function<void(int64_t change)> on_connections = [](int64_t) {};  // of any thread
};

class HttpServer final : public httplib::Server {
 public:
  explicit HttpServer(HttpOptions options);

  /// Listens; clients wait until serve(). The port. UserError(config): the address cannot be used, or no port
  /// of the range is free.
  int bind();
  /// Until finish(), or until no connection can be accepted any more. Run by a thread for it alone.
  void serve();
  /// Waits for the answers that are being written, then closes all connections. False: serve() had ended.
  bool finish();
  /// Writes the answer to a request that is refused before httplib sees it.
  void set_refusal_handler(std::function<void(const Refusal&, httplib::Response&)> handler) {
    refusal_handler_ = std::move(handler);
  }

  /// The client that sent the request still reads.
  bool is_open(const httplib::Request& request);
  /// The connection of a request whose body was not read must end with the answer.
  void close_after(const httplib::Request& request);
  /// Why the body of the request, which is being read, is refused.
  std::optional<Refusal> refusal_of(const httplib::Request& request);

 private:
  int bind_in_range();

  using Address = std::pair<std::string, int>;
  struct Entry {
    Connection* connection;
    bool busy = false, closes = false;
  };

  class AcceptQueue;

  /// Gives the socket to a thread. Called by the thread that accepts connections.
  bool process_and_close_socket(socket_t socket) override;
  void serve_connection(int socket);
  void answer_probe(int socket);
  /// Calls `serve` while the connection is known.
  void with_connection(Connection& connection, const std::function<void(const Address&)>& serve);
  void serve_requests(Connection& connection, const Address& address);
  void refuse(Connection& connection, const Refusal& refusal);
  /// False: it must not begin another request.
  bool set_busy(const Address& address, bool busy);

  HttpOptions options_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::map<Address, Entry> connections_;
  bool finishing_ = false;
  std::atomic<bool> ended_ = false;
  std::function<void(const Refusal&, httplib::Response&)> refusal_handler_ = [](const Refusal&,
                                                                                httplib::Response&) {};
  ConnectionThreads threads_;
  WaitingConnections waiting_;
};

}  // namespace teratron
