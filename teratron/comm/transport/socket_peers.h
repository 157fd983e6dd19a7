// Where a rank finds the others when its transport connects.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "teratron/comm/transport/socket.h"

namespace teratron {

struct SocketPeers {
  int64_t rank = 0;  // of this process
  int64_t size = 1;
  std::map<int64_t, SocketAddress> addresses;  // rank 0: of all ranks; others: of their parent (ranks/tree.h)
  std::string key;                             // of greetings: the job's secret and nonce
};

}  // namespace teratron
