#include "teratron/serve/waiting_connections.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace teratron {

namespace {

constexpr auto interval = std::chrono::milliseconds(10);
constexpr size_t longest_probe = 2048;  // bytes of its head

}  // namespace

void WaitingConnections::add(int socket) {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [&] { return waiting_.size() < options_.most || ends_; });
  if (ends_) {
    ::close(socket);
    return;
  }
  waiting_.push_back({socket});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  came_.notify_one();
}

bool WaitingConnections::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

void WaitingConnections::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  came_.notify_all();
  left_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const Entry& entry : std::exchange(waiting_, {})) ::close(entry.socket);
}

void WaitingConnections::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    came_.wait(lock, [&] { return !waiting_.empty() || ends_; });
    serve_first();
    for (int probe = take_probe(); probe >= 0; probe = take_probe()) {
      lock.unlock();
      options_.answer_probe(probe);
      lock.lock();
    }
    left_.notify_all();
    came_.wait_for(lock, interval, [&] { return ends_; });
  }
}

void WaitingConnections::serve_first() {
  while (!waiting_.empty() && options_.serve(waiting_.front().socket)) waiting_.pop_front();
}

int WaitingConnections::take_probe() {
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    const Kind kind = entry->ordinary ? Kind::ordinary : kind_of(entry->socket);
    const int socket = entry->socket;
    entry->ordinary = kind == Kind::ordinary;
    if (kind == Kind::closed) ::close(socket);
    const bool leaves = kind == Kind::closed || kind == Kind::probe;
    entry = leaves ? waiting_.erase(entry) : entry + 1;
    if (kind == Kind::probe) return socket;
  }
  return -1;
}

WaitingConnections::Kind WaitingConnections::kind_of(int socket) const {
  std::array<char, longest_probe> bytes{};
  const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count == 0) return Kind::closed;
  if (count < 0) return Kind::unknown;
  const std::string_view request(bytes.data(), static_cast<size_t>(count));
  if (!is_probe(request)) return Kind::ordinary;
  // Its answer must not have to wait for the rest.
  if (request.find("\r\n\r\n") != request.npos) return Kind::probe;
  return request.size() < bytes.size() ? Kind::unknown : Kind::ordinary;
}

// As far as it has arrived.
bool WaitingConnections::is_probe(std::string_view request) const {
  for (const char* method : {"GET ", "HEAD "}) {
    for (const std::string& path : options_.probes) {
      const std::string begin = method + path + " ";
      const size_t size = std::min(begin.size(), request.size());
      if (request.substr(0, size) == begin.substr(0, size)) return true;
    }
  }
  return false;
}

}  // namespace teratron
