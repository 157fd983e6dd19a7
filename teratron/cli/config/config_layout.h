// The parallel layout that the wizard proposes for a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/family.h"

namespace teratron {

struct LayoutRequest {
  const Family& family;
  std::vector<std::string> model;  // flags that select it: --model-preset NAME, --hf-config DIR
  int64_t gpus = 0;                // per machine
  double gpu_gib = 0.0;            // memory of each
};

struct ProposedLayout {
  int64_t tensor_parallel = 1;
  int64_t pipeline_parallel = 1;
  double needed_gib = 0.0;  // of the GPU that needs most
  bool fits = false;
};

/// The smallest model-parallel layout of bf16 training that fits by `plan` (micro-batches of 1, distributed
/// optimizer, selective recomputation), tensor parallelism first; the one that needs least memory if none
/// fits. UserError(config) for an unknown model.
ProposedLayout propose_layout(const LayoutRequest& request);

}  // namespace teratron
