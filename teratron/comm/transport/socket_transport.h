// Transport over TCP. Neighbours in the tree of ranks (ranks/tree.h) are connected from the start, other
// ranks when one sends to the other. The kernel closes the connections of a process that dies, so that its
// neighbours notice immediately.
#pragma once

#include <chrono>
#include <memory>

#include "teratron/comm/transport/socket_peers.h"
#include "teratron/comm/transport/transport.h"

namespace teratron {

/// Connects to the neighbours in the tree of ranks (transport/greeting.h), along which all ranks learn the
/// addresses of all; `listener` listens on this rank's address. Connections to other ranks are opened when
/// something is sent to them. Throws Fault naming the ranks that did not connect within `timeout`, and the
/// connections that were refused.
std::unique_ptr<Transport> connect_sockets(const SocketPeers& peers, FileDescriptor listener,
                                           std::chrono::milliseconds timeout);

}  // namespace teratron
