#include "teratron/comm/transport/port_range.h"

#include <charconv>

#include <unistd.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr int kMaxPort = 65535;

/// -1 if it is not a port.
int parse_port(std::string_view text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool valid = error == std::errc() && end == text.data() + text.size() && port > 0 && port <= kMaxPort;
  return valid ? port : -1;
}

}  // namespace

std::string to_string(const PortRange& range) {
  return fmt::format("{}-{}", range.first, range.last);
}

PortRange parse_port_range(const std::string& text, const std::string& where) {
  const size_t dash = text.find('-');
  const std::string_view whole = text;
  PortRange range{-1, -1};
  if (dash != text.npos) range = {parse_port(whole.substr(0, dash)), parse_port(whole.substr(dash + 1))};
  if (range.first > 0 && range.last >= range.first) return range;
  throw config_error(
      {.what = fmt::format("'{}' is not a range of ports", printable(text, 40)),
       .where = where,
       .fix = fmt::format("Write it as 33000-33999: two numbers from 1 to {}, the smaller first", kMaxPort)});
}

void require_in_range(int port, const std::string& name, const PortRange& range) {
  if (range.contains(port)) return;
  throw config_error({.what = fmt::format("port {} is not in the range {}", port, to_string(range)),
                      .where = name,
                      .fix = "Choose a port of --port-range, or leave it out"});
}

FileDescriptor listen_in(const std::string& address, const std::optional<PortRange>& range) {
  if (!range) return listen_on(address, 0);
  const int size = range->last - range->first + 1;
  // Processes of one job begin at different ports, so that they rarely try the same.
  const int begin = static_cast<int>(getpid() % size);
  for (int i = 0; i < size; ++i) {
    FileDescriptor listener = try_listen_on(address, range->first + (begin + i) % size);
    if (listener.get() >= 0) return listener;
  }
  throw config_error(
      {.what = fmt::format("no port from {} to {} is free on {}", range->first, range->last, address),
       .where = "--port-range",
       .fix = "Give a larger range: each rank listens on one port, rank 0 on two"});
}

}  // namespace teratron
