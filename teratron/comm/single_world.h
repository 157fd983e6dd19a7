// A job of one process.
#pragma once

#include "teratron/comm/communicator.h"

namespace teratron {

class SingleWorld final : public World {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>&) override { return self_communicator(); }
};

}  // namespace teratron
