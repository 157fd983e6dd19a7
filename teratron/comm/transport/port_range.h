// The ports on which everything of a job listens: --port-range of `teratron launch` and `serve`, passed to
// ranks as TERATRON_PORT_RANGE. A firewall can leave just these open.
#pragma once

#include <optional>
#include <string>

#include "teratron/comm/transport/socket.h"

namespace teratron {

struct PortRange {
  int first = 0;
  int last = 0;  // included
  bool contains(int port) const { return first <= port && port <= last; }
  bool operator==(const PortRange&) const = default;
};

/// "33000-65000"
std::string to_string(const PortRange& range);
/// Inverse. UserError(config) that names the flag or variable `where`.
PortRange parse_port_range(const std::string& text, const std::string& where);
/// UserError(config) if the port is in no such range.
void require_in_range(int port, const std::string& name, const PortRange& range);

/// Listens on some free port of the range, without one on any free port. UserError(config) if none of the
/// range is free; Fault as listen_on().
FileDescriptor listen_in(const std::string& address, const std::optional<PortRange>& range);

}  // namespace teratron
