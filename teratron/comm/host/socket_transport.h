// A Wire over TCP: every process is connected with every other. The kernel closes the connections of a
// process that dies, so its peers learn of it at once.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "teratron/comm/host/transport.h"

namespace teratron {

/// A file descriptor that is closed in the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return number_; }
  int release();

 private:
  int number_ = -1;
};

/// A port of this machine on one of its addresses (numeric, IPv4 or IPv6), and nothing else than this
/// address. `port` 0: any that is free. Throws Fault naming address and port if that cannot be had.
Descriptor listen_on(const std::string& address, int port);
int port_of(const Descriptor& listener);

/// Numeric addresses of a host name; empty if it has none (now).
std::vector<std::string> resolve(const std::string& host);
/// The address of this machine from which `address` is reached; "" if it is not.
std::string own_address_towards(const std::string& address);
/// Whether somebody listens there now.
bool can_connect(const std::string& address, int port);

/// Where a rank can be reached, as text: "address port token". The token keeps strangers out.
struct SocketAddress {
  std::string address;
  int port = 0;
  std::string token;
};
std::string to_string(const SocketAddress& address);
/// Throws Fault if the text is no address.
SocketAddress parse_socket_address(const std::string& text);

/// One rank's end: `addresses` of all ranks, of which `listener` has addresses[rank]. Connects with all of
/// them; throws Fault naming the ranks that did not come within `timeout`.
struct SocketPlaces {
  int64_t rank = 0;
  std::vector<SocketAddress> addresses;
};
std::unique_ptr<Wire> connect_sockets(const SocketPlaces& places, Descriptor listener,
                                      std::chrono::milliseconds timeout);

}  // namespace teratron
