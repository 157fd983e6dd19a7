// Training speed of a command line, measured with the real training loop, data loader and logging.
//
// After a warm-up (GPUs lower their clocks after seconds of GEMMs, so short timings are too good) each step
// is timed on the device, from the end of the previous step to its own end. Some more steps then run under
// the profiler.
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
  std::string name;  // for the report: the shape and the flags that override it
  std::string family = "gpt";
  double warm_up_seconds = 10.0;
  int64_t steps = 60;          // timed
  int64_t profiled_steps = 5;  // after the timed ones; 0: none. Needs a GPU.
};

struct BenchResult {
  std::string name;
  std::string device;
  int64_t world_size = 1;
  std::vector<double> seconds;  // per timed step
  int64_t tokens = 0;           // per step
  double flops = 0.0;           // per step, causal count
  double peak_flops_per_gpu = 0.0;
  double final_loss = 0.0;
  std::optional<MemoryUse> memory;
  int64_t profiled_steps = 0;
  KernelBreakdown breakdown;
  std::vector<KernelTotal> kernels;

  double median_seconds() const;
};

/// Runs on every rank; returns the result on the last rank only.
std::optional<BenchResult> bench(const Arguments& args, World& world, const StopSignals& signals,
                                 const BenchOptions& options);

/// A table, and one JSON object for scripts.
std::string to_string(const BenchResult& result);
std::string to_json(const BenchResult& result);

}  // namespace teratron
