// TCP sockets and their addresses.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace teratron {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

/// Listens on one numeric address (IPv4 or IPv6) of this node; port 0: any free one. Throws Fault naming
/// address and port if that fails.
FileDescriptor listen_on(const std::string& address, int port);
/// As listen_on(), but an empty descriptor if the port is in use or reserved for others.
FileDescriptor try_listen_on(const std::string& address, int port);
int port_of(const FileDescriptor& listener);

/// Numeric addresses of a host name; empty if it does not resolve.
std::vector<std::string> resolve(const std::string& host);
/// This node's address on the route to `address`; "" if there is no route.
std::string own_address_towards(const std::string& address);
/// The numeric address of this end of a connection, or of a listener; "?" if there is none.
std::string local_address(const FileDescriptor& connection);
/// The numeric address of the other end; "?" if it is gone.
std::string peer_address(const FileDescriptor& connection);
/// Connects to a numeric address; an empty descriptor if nothing listens there, or answers by `deadline`.
/// Blocking.
FileDescriptor connect_to(const std::string& address, int port, SteadyTime deadline);

/// Starts connecting and does not wait. The nonblocking descriptor is writable when the connection is there
/// or has failed.
FileDescriptor begin_connecting(const std::string& address, int port);

/// Waits until a connection is ready for `events` (of poll()) or has ended; false at the deadline.
bool wait_for_events(const FileDescriptor& connection, short events, SteadyTime deadline);
/// Milliseconds for poll(), at most one second.
int milliseconds_until(SteadyTime deadline);

/// A rank's listening socket, as text "address port".
struct SocketAddress {
  std::string address;
  int port = 0;
};
std::string to_string(const SocketAddress& address);
/// Throws Fault if the text is malformed.
SocketAddress parse_socket_address(const std::string& text);

}  // namespace teratron
