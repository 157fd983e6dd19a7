// Which part of a model a pipeline stage holds; no torch, so that layouts can be planned with.
#pragma once

#include <cstdint>

namespace teratron {

struct StageSpec {
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool embedding = true;
  bool head = true;  // last norm, output layer, loss
  bool operator==(const StageSpec&) const = default;
};

}  // namespace teratron
