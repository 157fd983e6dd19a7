// The part of a model that a (virtual) pipeline stage holds. Without torch: the planner uses it.
#pragma once

#include <cstdint>

namespace teratron {

struct StageSpec {
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool embedding = true;
  bool head = true;  // final norm, output layer, loss
  bool operator==(const StageSpec&) const = default;
};

}  // namespace teratron
