// httplib's server with limits: connections, the size of a request, and times (connection.h).
//
// A thread serves one connection; those beyond the limit wait in the kernel's queue. After a request that is
// not HTTP the connection ends, since where the next one begins is not known.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "teratron/serve/connection.h"

namespace teratron {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 5000;  // 0: any
  size_t max_connections = 512;
  size_t max_body_bytes = size_t{16} << 20U;
  ConnectionTimes times = {};
  std::function<void(int64_t change)> on_connections = [](int64_t) {};  // of any thread
};

class HttpServer final : public httplib::Server {
 public:
  explicit HttpServer(HttpOptions options);

  /// Listens; clients wait until serve(). The port. UserError(config): the address cannot be used.
  int bind();
  /// Until finish(), or until no connection can be accepted any more. Run by a thread for it alone.
  void serve();
  /// Waits for the answers that are being written, then closes all connections. False: serve() had ended.
  bool finish();

  /// The client that sent the request still reads.
  bool is_open(const httplib::Request& request);
  /// The connection of a request whose body was not read must end with the answer.
  void close_after(const httplib::Request& request);

 private:
  using Address = std::pair<std::string, int>;
  struct Entry {
    Connection* connection;
    bool busy = false, closes = false;
  };

  bool process_and_close_socket(socket_t socket) override;
  void serve_requests(Connection& connection, const Address& address);
  /// False: it must not begin another request.
  bool set_busy(const Address& address, bool busy);

  HttpOptions options_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::map<Address, Entry> connections_;
  bool finishing_ = false;
  std::atomic<bool> ended_ = false;
};

}  // namespace teratron
