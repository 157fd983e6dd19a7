// What the host side of one rank has cost so far.
#pragma once

#include <cstdint>

namespace teratron {

struct HostTraffic {
  int64_t messages = 0;     // sent
  int64_t bytes = 0;        // sent, with the headers of messages
  int64_t waits = 0;        // for messages, one after the other
  int64_t connections = 0;  // to other ranks, open now or before
};

}  // namespace teratron
