#include "teratron/comm/transport/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/comm/transport/descriptor_limit.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses look_up(const std::string& host, const char* port, const addrinfo& hints) {
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port, &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

Addresses numeric(const std::string& address, int port, int type) {
  const addrinfo hints{
      .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = type};
  return look_up(address, std::to_string(port).c_str(), hints);
}

std::string numeric_name(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> name{};
  const int error = getnameinfo(address, length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? name.data() : "";
}

[[noreturn]] void fail_to_listen(const std::string& address, int port, int error) {
  std::string advice;
  if (error == EADDRINUSE) advice = ". Choose another port, or stop the program that uses this one";
  if (error == EADDRNOTAVAIL) advice = ". Rank 0 must run on the node with this address";
  throw Fault(fmt::format("cannot listen on {}:{}: {}{}", address, port, std::strerror(error), advice));
}

/// The numeric address of one end of a connection.
std::string address_by(decltype(&getsockname) get_name, const FileDescriptor& connection) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* end = reinterpret_cast<sockaddr*>(&storage);
  const bool known = get_name(connection.get(), end, &length) == 0;
  const std::string name = known ? numeric_name(end, length) : "";
  return name.empty() ? "?" : name;
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}
int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

FileDescriptor try_listen_on(const std::string& address, int port) {
  const Addresses found = numeric(address, port, SOCK_STREAM);
  if (!found) throw Fault(fmt::format("'{}' is not a numeric address", printable(address)));
  FileDescriptor listener(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) check_descriptors(errno, fmt::format("listening on {}:{}", address, port));
  const int yes = 1;
  const bool bound =
      listener.get() >= 0 && setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      bind(listener.get(), found->ai_addr, found->ai_addrlen) == 0 && listen(listener.get(), SOMAXCONN) == 0;
  if (bound) return listener;
  const int error = errno;
  if (error == EADDRINUSE || error == EACCES) {
    listener = FileDescriptor();
    errno = error;
    return listener;
  }
  fail_to_listen(address, port, error);
}

FileDescriptor listen_on(const std::string& address, int port) {
  FileDescriptor listener = try_listen_on(address, port);
  if (listener.get() < 0) fail_to_listen(address, port, errno);
  return listener;
}

int port_of(const FileDescriptor& listener) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  TERATRON_ASSERT(getsockname(listener.get(), address, &length) == 0);
  return ntohs(address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(address)->sin_port);
}

std::vector<std::string> resolve(const std::string& host) {
  std::vector<std::string> names;
  const Addresses found = look_up(host, nullptr, {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM});
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    const std::string name = numeric_name(one->ai_addr, one->ai_addrlen);
    // IPv4 first: "localhost" is both, and many programs listen on 127.0.0.1 only.
    if (!name.empty()) names.insert(one->ai_family == AF_INET ? names.begin() : names.end(), name);
  }
  return names;
}

std::string own_address_towards(const std::string& address) {
  const Addresses found = numeric(address, 9, SOCK_DGRAM);
  if (!found) return "";
  const FileDescriptor probe(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (probe.get() < 0) check_descriptors(errno, fmt::format("finding the route to {}", address));
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* own = reinterpret_cast<sockaddr*>(&storage);
  // Sends nothing: connecting a datagram socket only looks up the route.
  const bool known = probe.get() >= 0 && connect(probe.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                     getsockname(probe.get(), own, &length) == 0;
  return known ? numeric_name(own, length) : "";
}

std::string local_address(const FileDescriptor& connection) {
  return address_by(getsockname, connection);
}

std::string peer_address(const FileDescriptor& connection) {
  return address_by(getpeername, connection);
}

int milliseconds_until(SteadyTime deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
}

bool wait_for_events(const FileDescriptor& connection, short events, SteadyTime deadline) {
  pollfd polled{connection.get(), events, 0};
  do {
    if (poll(&polled, 1, milliseconds_until(deadline)) > 0) return true;
  } while (Clock::now() < deadline);
  return false;
}

/// Where packets are dropped, connect() alone would wait for minutes.
FileDescriptor connect_to(const std::string& address, int port, SteadyTime deadline) {
  FileDescriptor connection = begin_connecting(address, port);
  if (connection.get() < 0 || !wait_for_events(connection, POLLOUT, deadline)) return {};
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return {};
  fcntl(connection.get(), F_SETFL, 0);
  return connection;
}

FileDescriptor begin_connecting(const std::string& address, int port) {
  const Addresses found = numeric(address, port, SOCK_STREAM);
  if (!found) return {};
  FileDescriptor connection(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.get() < 0) check_descriptors(errno, fmt::format("a connection to {}:{}", address, port));
  if (connection.get() < 0) return {};
  const bool begun =
      connect(connection.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS;
  return begun ? std::move(connection) : FileDescriptor();
}

std::string to_string(const SocketAddress& address) {
  return fmt::format("{} {}", address.address, address.port);
}

SocketAddress parse_socket_address(const std::string& text) {
  SocketAddress address;
  std::istringstream fields(text);
  const bool complete = fields >> address.address >> address.port && fields.peek() == EOF;
  const bool valid =
      complete && numeric(address.address, 0, SOCK_STREAM) && address.port > 0 && address.port < 1 << 16;
  if (!valid) {
    throw Fault(fmt::format("'{}' is not the address of a rank: is it the same version of the program?",
                            printable(text)));
  }
  return address;
}

}  // namespace teratron
