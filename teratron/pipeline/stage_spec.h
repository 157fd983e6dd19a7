// The part of a model that a (virtual) pipeline stage holds. Without torch: the planner uses it.
#pragma once

#include <cstdint>

namespace teratron {

/// Layers [first, first + count) of a model or of a tower.
struct LayerRange {
  int64_t first = 0;
  int64_t count = 0;
};

struct StageSpec {
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool embedding = true;
  bool head = true;  // final norm, output layer, loss
  bool operator==(const StageSpec&) const = default;
};

}  // namespace teratron
