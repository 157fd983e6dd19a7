#include "teratron/comm/rendezvous/connect_ranks.h"

#include <bit>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/base/environment.h"
#include "teratron/base/log.h"
#include "teratron/comm/ranks/flight_recorder.h"
#include "teratron/comm/transport/descriptor_limit.h"
#include "teratron/comm/transport/interfaces.h"
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

/// Other files; and rank 0 has a connection to every rank until all have joined, others to their neighbours
/// in the tree of ranks and to those that collectives along a tree or a hypercube reach.
int64_t needed_descriptors(const LaunchEnv& env) {
  const bool all = env.rank == 0 && !env.agent_store;
  return 64 + (all ? env.size : 4 * std::bit_width(static_cast<uint64_t>(env.size)));
}

/// Why this rank cannot start, for all ranks; "" if it can.
std::string own_refusal(const LaunchEnv& env, const std::string& address) {
  const std::string here = fmt::format("rank {} of {} on {}", env.rank, env.size, host_name());
  const int64_t limit = raise_descriptor_limit(), needed = needed_descriptors(env);
  if (limit < needed) {
    return start_refusal(
        fmt::format("{} may open {} files and sockets, but needs {}", here, limit, needed),
        "Raise the hard limit on its machine (ulimit -n): ulimit -Hn, LimitNOFILE= of a systemd "
        "unit, --ulimit nofile= of a container");
  }
  if (!address.empty()) return "";
  const bool one_name = env.interface.starts_with('=');
  return start_refusal(fmt::format("{} has no interface '{}' with an address, but {}", here,
                                   printable(env.interface.substr(one_name ? 1 : 0), 40),
                                   fmt::join(interfaces_with_addresses(), ", ")),
                       fmt::format("Correct {} on its machine, or unset it", env.interface_variable));
}

/// The listener, or a start_refusal() where the range of ports has none free.
FileDescriptor listen(const LaunchEnv& env, const std::string& address, std::string& refusal) {
  try {
    return listen_in(address, env.ports);
  } catch (const UserError& error) {
    const Problem& problem = error.problems().front();
    refusal = start_refusal(
        fmt::format("rank {} of {} on {}: {}", env.rank, env.size, host_name(), problem.what), problem.fix);
    return {};
  }
}

}  // namespace

std::unique_ptr<Transport> connect_ranks(const LaunchEnv& env, Rendezvous& rendezvous,
                                         std::chrono::milliseconds timeout) {
  const std::string& route = rendezvous.own_address();
  SocketAddress own{.address = env.interface.empty() ? route : address_of_interface(env.interface, route)};
  std::string text = own_refusal(env, own.address);
  FileDescriptor listener;
  if (text.empty()) listener = listen(env, own.address, text);
  if (text.empty()) {
    own.port = port_of(listener);
    text = fmt::format("{} {}", env.attempt, to_string(own));
  }
  const Meeting meeting = rendezvous.meet(text);
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
