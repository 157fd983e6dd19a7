// What a reader of a run's report wants to know first.
#pragma once

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/plan/flops.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

struct RunDescription {
  const Arguments& args;
  const GPTConfig& model;
  at::Device device = at::kCPU;
  int64_t parameters = 0;  // on this rank
  int64_t train_iters = 0;
  int64_t start_iteration = 0;
  int64_t world_size = 1;
};

/// The arithmetic that the peak of a device is quoted for.
MathMode math_mode(const Arguments& args);

RunFacts run_facts(const RunDescription& run);

}  // namespace teratron
