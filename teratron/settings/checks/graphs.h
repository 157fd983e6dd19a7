// What keeps micro-batches of a model with experts from becoming CUDA graphs (--cuda-graph-impl).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/settings/arguments.h"

namespace teratron {

struct GraphObstacle {
  std::string_view setting;
  std::string reason;
  std::string fix;
};

/// Waiting for the device and communication cannot be captured. Empty: nothing of the kind, or no experts.
/// data_parallel_size must be set.
std::vector<GraphObstacle> expert_graph_obstacles(const Arguments& args);

}  // namespace teratron
