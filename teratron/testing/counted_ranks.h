// Many ranks as threads of one process whose messages are counted: what collectives cost a rank, at sizes for
// which there are no machines.
#pragma once

#include <cstdint>
#include <functional>

#include "teratron/comm/ranks/host_group.h"

namespace teratron {

struct RankCost {
  int64_t messages = 0;  // sent
  int64_t sent = 0;      // bytes
  int64_t received = 0;
  int64_t rounds = 0;  // messages waited for one after the other
  double seconds = 0;  // of CPU, of the calling thread
};

class CountedGroup : public HostGroup {
 public:
  virtual RankCost cost() const = 0;
};

/// Runs `body` on `ranks` threads; collectives use the tree of comm/ranks/tree.h. Rethrows the first
/// exception, after which the collectives of the others throw Fault.
void run_counted_ranks(int64_t ranks, const std::function<void(CountedGroup&)>& body);

}  // namespace teratron
