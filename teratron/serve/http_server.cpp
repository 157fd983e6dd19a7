#include "teratron/serve/http_server.h"

#include <algorithm>
#include <cstring>

#include "teratron/base/error.h"
#include "teratron/serve/connection_threads.h"

namespace teratron {

HttpServer::HttpServer(HttpOptions options) : options_(std::move(options)) {
  new_task_queue = [threads = options_.max_connections] { return new ConnectionThreads(threads); };
  set_payload_max_length(options_.max_body_bytes);
  set_keep_alive_max_count(1'000'000);
  set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(options_.times.idle).count());
  // A port that was just released can be used again, but not one that is in use.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
}

int HttpServer::bind() {
  constexpr int backlog = 4096;
  errno = 0;
  const int port = options_.port == 0                           ? bind_to_any_port(options_.host)
                   : bind_to_port(options_.host, options_.port) ? options_.port
                                                                : -1;
  if (port > 0 && ::listen(svr_sock_, backlog) == 0) return port;
  throw config_error(
      {.what = fmt::format("cannot listen on {}:{}{}{}", printable(options_.host, 80), options_.port,
                           errno ? ": " : "", errno ? std::strerror(errno) : ""),
       .where = "--port",
       .fix = "Choose an address of this machine with --host, and a free port"});
}

void HttpServer::serve() {
  listen_after_bind();
  ended_ = true;
}

bool HttpServer::finish() {
  const bool ended = ended_;
  // stop() has no effect before the server runs.
  while (!is_running() && !ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    idle_.wait(lock, [&] {
      return std::none_of(connections_.begin(), connections_.end(),
                          [](const auto& entry) { return entry.second.busy; });
    });
    for (const auto& [address, entry] : connections_) entry.connection->interrupt();
  }
  stop();
  return !ended;
}

bool HttpServer::is_open(const httplib::Request& request) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find({request.remote_addr, request.remote_port});
  return found != connections_.end() && found->second.connection->is_open();
}

void HttpServer::close_after(const httplib::Request& request) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find({request.remote_addr, request.remote_port});
  if (found != connections_.end()) found->second.closes = true;
}

bool HttpServer::set_busy(const Address& address, bool busy) {
  const std::lock_guard lock(mutex_);
  Entry& entry = connections_.at(address);
  if (busy && finishing_) return false;
  entry.busy = busy;
  if (!busy) idle_.notify_all();
  return !entry.closes && !finishing_;
}

void HttpServer::serve_requests(Connection& connection, const Address& address) {
  bool more = true, refused = false;
  while (more && connection.wait_request() && set_busy(address, true)) {
    bool closed = false, understood = false;
    const bool answered =
        process_request(connection, false, closed, [&](httplib::Request&) { understood = true; });
    more = set_busy(address, false) && answered && understood && !closed;
    // Where the next request begins is not known.
    refused = answered && !understood;
  }
  {
    const std::lock_guard lock(mutex_);
    refused |= connections_.at(address).closes;
  }
  if (refused) connection.linger();
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  constexpr size_t headers = size_t{1} << 18U;
  Connection connection(socket, options_.times, options_.max_body_bytes + headers);
  Address address;
  connection.get_remote_ip_and_port(address.first, address.second);
  {
    const std::lock_guard lock(mutex_);
    if (finishing_ || !connections_.try_emplace(address, Entry{&connection}).second) return false;
  }
  options_.on_connections(1);
  serve_requests(connection, address);
  options_.on_connections(-1);
  const std::lock_guard lock(mutex_);
  connections_.erase(address);
  return true;
}

}  // namespace teratron
