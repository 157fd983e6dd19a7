// Transport over TCP, with a connection between every two processes. The kernel closes the connections of a
// process that dies, so its peers notice immediately.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/host/transport.h"

namespace teratron {

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
int port_of(const FileDescriptor& listener);

/// Numeric addresses of a host name; empty if it does not resolve.
std::vector<std::string> resolve(const std::string& host);
/// This node's address on the route to `address`; "" if there is no route.
std::string own_address_towards(const std::string& address);
/// The numeric address of the other end; "?" if it is gone.
std::string peer_address(const FileDescriptor& connection);
/// Connects to a numeric address; an empty descriptor if nothing listens there.
FileDescriptor connect_to(const std::string& address, int port);

/// A rank's listening socket, as text "address port token". The token, part of the key of greetings, rejects
/// ranks of other jobs.
struct SocketAddress {
  std::string address;
  int port = 0;
  std::string token;  // 32 hexadecimal digits
};
std::string to_string(const SocketAddress& address);
/// Throws Fault if the text is malformed.
SocketAddress parse_socket_address(const std::string& text);

struct SocketPeers {
  int64_t rank = 0;                      // of this process
  std::vector<SocketAddress> addresses;  // by rank
  std::string secret = {};               // of the job; "": ranks know the tokens only
};
/// Connects to all peers (rendezvous/greeting.h); `listener` listens on this rank's address. Throws Fault
/// naming the ranks that did not connect within `timeout`, and the connections that were refused.
std::unique_ptr<Transport> connect_sockets(const SocketPeers& peers, FileDescriptor listener,
                                           std::chrono::milliseconds timeout);

}  // namespace teratron
