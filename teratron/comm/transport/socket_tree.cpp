#include "teratron/comm/transport/socket_tree.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "teratron/base/error.h"
#include "teratron/comm/ranks/flight_recorder.h"
#include "teratron/comm/ranks/tree.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kMaxAddressBytes = 64;  // of one rank

class TreeConnector {
 public:
  TreeConnector(const SocketPeers& peers, Reception& reception, std::chrono::milliseconds timeout)
      : peers_(peers), reception_(reception), timeout_(timeout), deadline_(Clock::now() + timeout) {}

  SocketTree connect() {
    if (peers_.rank > 0) call_parent();
    accept_children();
    const std::string table = peers_.rank > 0 ? receive_table() : own_table();
    send_table(table);
    tree_.addresses = AddressTable::decode(table);
    if (tree_.addresses.size() != peers_.size) {
      throw Fault(fmt::format("{} addresses of {} ranks arrived: is it the same version of the program?",
                              tree_.addresses.size(), peers_.size));
    }
    return std::move(tree_);
  }

 private:
  void call_parent() {
    const int64_t parent = tree_parent(peers_.rank);
    const SocketAddress& to = peers_.addresses.at(parent);
    const Greeting greeting{.purpose = Greeting::Purpose::transport,
                            .caller = peers_.rank,
                            .called = parent,
                            .size = peers_.size};
    while (true) {
      FileDescriptor connection = connect_to(to.address, to.port, deadline_);
      const bool open = connection.get() >= 0;
      Call call(std::move(connection), greeting, peers_.key);
      const bool greeted = open && call.greet(deadline_) == Call::Answer::greeted;
      if (greeted && call.prove("", deadline_)) return add(parent, std::move(call.connection()));
      if (Clock::now() >= deadline_) {
        fail(fmt::format("rank {} at {}:{}", parent, to.address, to.port),
             fmt::format("It calls from {}", own_address_towards(to.address)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void accept_children() {
    while (true) {
      std::vector<int64_t> missing = tree_children(peers_.rank, peers_.size);
      std::erase_if(missing, [&](int64_t child) { return tree_.neighbours.contains(child); });
      if (missing.empty()) return;
      std::optional<Reception::Caller> caller = reception_.next(deadline_);
      if (!caller) {
        const std::string strangers = reception_.strangers();
        fail(describe_ranks(missing), fmt::format("They were to call {}{}{}", reception_.address(),
                                                  strangers.empty() ? "" : ". ", strangers));
      }
      const bool expected = std::find(missing.begin(), missing.end(), caller->rank) != missing.end();
      if (expected) {
        add(caller->rank, std::move(caller->connection));
      } else if (caller->rank < peers_.size) {
        tree_.others.emplace_back(caller->rank, std::move(caller->connection));
      }
    }
  }

  std::string own_table() const {
    AddressTable table;
    for (const auto& [rank, address] : peers_.addresses) table.add(address);
    return table.encode();
  }

  std::string receive_table() {
    const int64_t parent = tree_parent(peers_.rank);
    const FileDescriptor& connection = tree_.neighbours.at(parent);
    uint64_t size = 0;
    if (!read_exactly(connection, &size, sizeof(size), deadline_)) fail_between(parent);
    if (size > kMaxAddressBytes * static_cast<uint64_t>(peers_.size)) {
      throw Fault(fmt::format("rank {} sent {} bytes of addresses", parent, size));
    }
    std::string table(size, '\0');
    if (!read_exactly(connection, table.data(), size, deadline_)) fail_between(parent);
    return table;
  }

  void send_table(const std::string& table) const {
    const uint64_t size = table.size();
    for (const int64_t child : tree_children(peers_.rank, peers_.size)) {
      const FileDescriptor& connection = tree_.neighbours.at(child);
      const bool sent = write_exactly(connection, &size, sizeof(size), deadline_) &&
                        write_exactly(connection, table.data(), size, deadline_);
      if (!sent) fail_between(child);
    }
  }

  void add(int64_t rank, FileDescriptor connection) {
    send_without_delay(connection);
    tree_.neighbours[rank] = std::move(connection);
  }

  [[noreturn]] void fail(const std::string& missing, const std::string& details) const {
    const double seconds = std::chrono::duration<double>(timeout_).count();
    throw Fault(
        fmt::format("rank {} could not connect to {} within {:g} s. {}. On machines with several "
                    "networks, TERATRON_SOCKET_IFNAME names the interface that ranks are called at",
                    peers_.rank, missing, seconds, details));
  }

  [[noreturn]] void fail_between(int64_t peer) const {
    throw Fault(
        fmt::format("rank {} lost its connection to rank {} while the job started", peers_.rank, peer));
  }

  const SocketPeers& peers_;
  Reception& reception_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  SocketTree tree_;
};

}  // namespace

Reception::Options reception_options(const SocketPeers& peers) {
  return {.purpose = Greeting::Purpose::transport, .called = peers.rank, .key = peers.key};
}

void send_without_delay(const FileDescriptor& connection) {
  const int yes = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

SocketTree connect_tree(const SocketPeers& peers, Reception& reception, std::chrono::milliseconds timeout) {
  return TreeConnector(peers, reception, timeout).connect();
}

}  // namespace teratron
