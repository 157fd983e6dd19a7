// For tests: collectives as late as a GPU's may be. CPU ranks finish a collective before it returns, so that
// nobody there misses a wait() that was forgotten; here it happens inside of wait(), and until then what it
// will write holds NaN.
#pragma once

#include "teratron/comm/communicator.h"

namespace teratron {

/// The ranks of `world`, which must outlive it. Messages are sent at once, and received late.
class LateWorld final : public World {
 public:
  explicit LateWorld(World& world) : world_(world) {}
  int64_t rank() const override { return world_.rank(); }
  int64_t size() const override { return world_.size(); }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override;

 private:
  World& world_;
};

}  // namespace teratron
