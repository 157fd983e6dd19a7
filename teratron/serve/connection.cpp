#include "teratron/serve/connection.h"

#include <algorithm>
#include <array>

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace teratron {

namespace {

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

void address_of(const sockaddr_storage& address, socklen_t size, std::string& ip, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  if (::getnameinfo(any, size, host.data(), host.size(), service.data(), service.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  ip = host.data();
  port = std::atoi(service.data());
}

}  // namespace

Connection::Connection(int socket, const ConnectionTimes& times, size_t max_body_bytes)
    : socket_(socket), times_(times), max_body_bytes_(max_body_bytes) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose host vanished: found within a minute.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(times.write.count()));
}

Connection::~Connection() {
  ::shutdown(socket_, SHUT_RDWR);
  ::close(socket_);
}

bool Connection::wait(short events, Clock::time_point until) const {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd descriptor{socket_, events, 0};
    const int ready = ::poll(&descriptor, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
    if (ready > 0) return (descriptor.revents & (events | POLLHUP | POLLERR)) != 0;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool Connection::wait_request() {
  const bool begins = begin_ < end_ || wait(POLLIN, Clock::now() + times_.idle);
  deadline_ = Clock::now() + times_.request;
  return begins;
}

bool Connection::read_head() {
  HeadReader reader;
  while (!reader.finished()) {
    if (begin_ == end_ && !fill_buffer()) return false;
    begin_ += reader.take({buffer_.data() + begin_, end_ - begin_});
  }
  refusal_ = reader.refusal();
  if (refusal_) return false;
  head_ = reader.text();
  head_read_ = 0;
  body_left_ = reader.body().length;
  chunks_.reset();
  if (reader.body().chunked) chunks_.emplace(max_body_bytes_);
  return true;
}

bool Connection::finish_request() {
  size_t most = size_t{1} << 16U;
  std::array<char, 4096> discarded{};
  if (body_left_ > most || refusal_) return false;
  while (most >= discarded.size()) {
    const ssize_t count = read_body(discarded.data(), discarded.size());
    if (count <= 0) return count == 0;
    most -= static_cast<size_t>(count);
  }
  return body_left_ == 0 && (!chunks_ || chunks_->finished());
}

bool Connection::is_open() const {
  pollfd descriptor{socket_, POLLIN | POLLRDHUP, 0};
  if (::poll(&descriptor, 1, 0) <= 0) return true;
  return (descriptor.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0;
}

void Connection::interrupt() {
  ::shutdown(socket_, SHUT_RDWR);
}

void Connection::linger() {
  size_t most = size_t{1} << 26U;
  ::shutdown(socket_, SHUT_WR);
  deadline_ = Clock::now() + std::chrono::seconds(2);
  std::array<char, 16384> discarded{};
  while (most >= discarded.size()) {
    const ssize_t count = read_bytes(discarded.data(), discarded.size());
    if (count <= 0) return;
    most -= static_cast<size_t>(count);
  }
}

bool Connection::is_readable() const {
  return head_read_ < head_.size() || begin_ < end_ || wait(POLLIN, deadline_);
}

bool Connection::is_writable() const {
  return is_open();
}

ssize_t Connection::receive(char* data, size_t size) {
  if (!wait(POLLIN, deadline_)) return -1;
  ssize_t count = 0;
  do count = ::recv(socket_, data, size, MSG_DONTWAIT);
  while (count < 0 && errno == EINTR);
  return count;
}

bool Connection::fill_buffer() {
  const ssize_t count = receive(buffer_.data(), buffer_.size());
  begin_ = 0;
  end_ = static_cast<size_t>(std::max<ssize_t>(count, 0));
  return count > 0;
}

ssize_t Connection::read_bytes(char* data, size_t size) {
  if (begin_ == end_) {
    if (size >= buffer_.size()) return receive(data, size);
    if (!fill_buffer()) return -1;
  }
  const size_t count = std::min(size, end_ - begin_);
  std::copy_n(buffer_.data() + begin_, count, data);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

// 0: it is complete. A body that is broken off is an error.
ssize_t Connection::read_body(char* data, size_t size) {
  if (chunks_) {
    const ssize_t count =
        chunks_->read([this](char* to, size_t most) { return read_bytes(to, most); }, data, size);
    refusal_ = chunks_->refusal();
    return count;
  }
  if (body_left_ == 0) return 0;
  const ssize_t count = read_bytes(data, std::min<uint64_t>(size, body_left_));
  if (count <= 0) return -1;
  body_left_ -= static_cast<uint64_t>(count);
  return count;
}

ssize_t Connection::read(char* data, size_t size) {
  if (head_read_ == head_.size()) return read_body(data, size);
  const size_t count = std::min(size, head_.size() - head_read_);
  std::copy_n(head_.data() + head_read_, count, data);
  head_read_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  const Clock::time_point until = Clock::now() + times_.write;
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::send(socket_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
      return -1;
    } else if (!wait(POLLOUT, until)) {
      return -1;
    }
  }
  return static_cast<ssize_t>(size);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    address_of(address, size, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    address_of(address, size, ip, port);
}

}  // namespace teratron
