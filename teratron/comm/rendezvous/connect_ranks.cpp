#include "teratron/comm/rendezvous/connect_ranks.h"

#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/log.h"
#include "teratron/comm/host/flight_recorder.h"
#include "teratron/comm/transport/socket_transport.h"

namespace teratron {
namespace {

/// Each machine's launcher counts its own restarts.
void report_restarts(const std::vector<int64_t>& ranks, const std::vector<std::string>& restarts) {
  const auto kinds = group_by_text(ranks, restarts);
  if (kinds.size() == 1) return;
  std::vector<std::string> parts;
  for (const auto& [count, members] : kinds)
    parts.push_back(fmt::format("{}: {}", describe_ranks(members), printable(count, 20)));
  notice("the ranks were restarted different numbers of times, as after a machine was replaced ({})",
         fmt::join(parts, "; "));
}

}  // namespace

std::unique_ptr<Transport> connect_ranks(const LaunchEnv& env, Rendezvous& rendezvous,
                                         std::chrono::milliseconds timeout) {
  FileDescriptor listener = listen_on(rendezvous.own_address(), 0);
  const SocketAddress own{.address = rendezvous.own_address(), .port = port_of(listener)};
  const Meeting meeting = rendezvous.meet(fmt::format("{} {}", env.attempt, to_string(own)));
  SocketPeers peers{.rank = env.rank, .size = env.size, .key = env.secret + " " + meeting.nonce};
  std::vector<int64_t> ranks;
  std::vector<std::string> restarts;
  for (const auto& [rank, text] : meeting.texts) {
    const size_t space = text.find(' ');
    ranks.push_back(rank);
    restarts.push_back(text.substr(0, space));
    peers.addresses[rank] = parse_socket_address(space == text.npos ? "" : text.substr(space + 1));
  }
  if (env.rank == 0) report_restarts(ranks, restarts);
  return connect_sockets(peers, std::move(listener), timeout);
}

}  // namespace teratron
