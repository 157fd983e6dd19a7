#include "teratron/serve/http_server.h"

#include <algorithm>
#include <cstring>

#include "teratron/base/error.h"

namespace teratron {

// httplib's queue of accepted connections: they are taken at once, and wait elsewhere.
class HttpServer::AcceptQueue final : public httplib::TaskQueue {
 public:
  explicit AcceptQueue(HttpServer& server) : server_(server) {}
  void enqueue(std::function<void()> take) override { take(); }
  void shutdown() override {
    server_.waiting_.end();
    server_.threads_.shutdown();
  }

 private:
  HttpServer& server_;
};

HttpServer::HttpServer(HttpOptions options)
    : options_(std::move(options)),
      threads_(options_.max_connections),
      waiting_(
          {.probes = options_.probes,
           .serve = [this](int socket) { return threads_.start([=, this] { serve_connection(socket); }); },
           .answer_probe = [this](int socket) { answer_probe(socket); }}) {
  new_task_queue = [this] { return new AcceptQueue(*this); };
  set_payload_max_length(options_.max_body_bytes);
  set_keep_alive_max_count(1'000'000);
  set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(options_.times.idle).count());
  // A port that was just released can be used again, but not one that is in use.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
}

// The first that is free, or -1.
int HttpServer::bind_in_range() {
  for (int port = options_.ports->first; port <= options_.ports->last; ++port) {
    if (bind_to_port(options_.host, port)) return port;
    if (errno != EADDRINUSE && errno != EACCES) break;
  }
  return -1;
}

int HttpServer::bind() {
  constexpr int backlog = 4096;
  errno = 0;
  const int port = options_.port == 0 && options_.ports         ? bind_in_range()
                   : options_.port == 0                         ? bind_to_any_port(options_.host)
                   : bind_to_port(options_.host, options_.port) ? options_.port
                                                                : -1;
  if (port > 0 && ::listen(svr_sock_, backlog) == 0) return port;
  throw config_error(
      {.what = fmt::format("cannot listen on {}:{}{}{}", printable(options_.host, 80),
                           options_.ports ? to_string(*options_.ports) : std::to_string(options_.port),
                           errno ? ": " : "", errno ? std::strerror(errno) : ""),
       .where = options_.ports ? "--port-range" : "--port",
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

std::optional<Refusal> HttpServer::refusal_of(const httplib::Request& request) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find({request.remote_addr, request.remote_port});
  return found == connections_.end() ? std::nullopt : found->second.connection->refusal();
}

bool HttpServer::set_busy(const Address& address, bool busy) {
  const std::lock_guard lock(mutex_);
  Entry& entry = connections_.at(address);
  if (busy && finishing_) return false;
  entry.busy = busy;
  if (!busy) idle_.notify_all();
  return !entry.closes && !finishing_;
}

void HttpServer::refuse(Connection& connection, const Refusal& refusal) {
  httplib::Response response;
  refusal_handler_(refusal, response);
  const std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n"
      "Content-Length: {}\r\n\r\n{}",
      refusal.status, refusal.status == 501 ? "Not Implemented" : "Bad Request",
      response.get_header_value("Content-Type"), response.body.size(), response.body);
  connection.write(text.data(), text.size());
}

void HttpServer::serve_requests(Connection& connection, const Address& address) {
  bool more = true, refused = false;
  while (more && connection.wait_request() && set_busy(address, true)) {
    bool answered = false, closed = false, understood = false;
    if (connection.read_head()) {
      answered = process_request(connection, false, closed, [&](httplib::Request&) { understood = true; });
    } else if (connection.refusal()) {
      refuse(connection, *connection.refusal());
      answered = true;
    }
    const bool goes_on = set_busy(address, false) && answered && understood && !closed;
    more = goes_on && connection.finish_request();
    // Where the next request begins is not known, or it is far away.
    refused = answered && (!understood || connection.refusal() || more != goes_on);
  }
  {
    const std::lock_guard lock(mutex_);
    refused |= connections_.at(address).closes;
  }
  if (refused) connection.linger();
}

void HttpServer::with_connection(Connection& connection, const std::function<void(const Address&)>& serve) {
  Address address;
  connection.get_remote_ip_and_port(address.first, address.second);
  {
    const std::lock_guard lock(mutex_);
    if (finishing_ || !connections_.try_emplace(address, Entry{&connection}).second) return;
  }
  options_.on_connections(1);
  serve(address);
  options_.on_connections(-1);
  const std::lock_guard lock(mutex_);
  connections_.erase(address);
}

void HttpServer::serve_connection(int socket) {
  Connection connection(socket, options_.times, options_.max_body_bytes);
  with_connection(connection, [&](const Address& address) { serve_requests(connection, address); });
}

void HttpServer::answer_probe(int socket) {
  const std::chrono::milliseconds soon{1000};
  Connection connection(socket, {.request = soon, .write = soon, .idle = soon}, 0);
  with_connection(connection, [&](const Address& /*address*/) {
    bool closed = false;
    if (connection.wait_request() && connection.read_head())
      process_request(connection, true, closed, [](httplib::Request&) {});
  });
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  const bool free = waiting_.empty() && threads_.start([this, socket] { serve_connection(socket); });
  if (!free) waiting_.add(socket);
  return true;
}

}  // namespace teratron
