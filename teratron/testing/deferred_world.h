// Runs collectives in Work::wait() and fills their outputs with NaN until then. CPU collectives complete
// before they return, so without this no test on CPUs would notice a missing wait().
#pragma once

#include "teratron/comm/communicator.h"

namespace teratron {

/// Wraps `world`, which must outlive it. Sends are immediate, receives deferred.
class DeferredWorld final : public World {
 public:
  explicit DeferredWorld(World& world) : world_(world) {}
  int64_t rank() const override { return world_.rank(); }
  int64_t size() const override { return world_.size(); }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override;

 private:
  World& world_;
};

}  // namespace teratron
