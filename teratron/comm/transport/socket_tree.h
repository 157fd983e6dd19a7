// The connections of a rank to its neighbours in the tree of ranks. Internal to the socket transport.
#pragma once

#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "teratron/comm/transport/address_table.h"
#include "teratron/comm/transport/greeting.h"
#include "teratron/comm/transport/socket_peers.h"

namespace teratron {

struct SocketTree {
  std::map<int64_t, FileDescriptor> neighbours;            // by rank
  std::vector<std::pair<int64_t, FileDescriptor>> others;  // ranks that have called already
  AddressTable addresses;
};

Reception::Options reception_options(const SocketPeers& peers);
void send_without_delay(const FileDescriptor& connection);

/// Connects to the parent, accepts the children, and passes the addresses of all ranks down the tree.
SocketTree connect_tree(const SocketPeers& peers, Reception& reception, std::chrono::milliseconds timeout);

}  // namespace teratron
