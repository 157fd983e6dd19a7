// How fast a command line trains: the real loop, data loader and logging included.
//
// After a warm-up (GPUs lower their clocks after seconds of dense matrix products, so short timings flatter)
// each step is timed by the device, from the end of the step before to its own: the host may read the numbers of
// several together. Some further steps run under a profiler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/bench/kernel_breakdown.h"
#include "teratron/settings/arguments.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

class StopSignals;
class World;

struct BenchOptions {
  std::string name;  // of the shape and the flags that overrule it, for the report
  double warm_up_seconds = 10.0;
  int64_t steps = 60;          // timed
  int64_t profiled_steps = 5;  // afterwards; 0: none. Needs a GPU.
};

struct BenchResult {
  std::string name;
  std::string device;
  int64_t world_size = 1;
  std::vector<double> seconds;  // of each timed step, in order
  int64_t tokens = 0;           // of a step
  double flops = 0.0;           // of a step, causal count
  double peak_flops_per_gpu = 0.0;
  double final_loss = 0.0;
  std::optional<MemoryUse> memory;
  int64_t profiled_steps = 0;
  KernelBreakdown breakdown;
  std::vector<KernelTotal> kernels;

  double median_seconds() const;
};

/// Runs on every rank; the result is the last rank's, empty on the others.
std::optional<BenchResult> bench(const Arguments& args, World& world, const StopSignals& signals,
                                 const BenchOptions& options);

/// A table for people, and one JSON object for scripts.
std::string to_string(const BenchResult& result);
std::string to_json(const BenchResult& result);

}  // namespace teratron
