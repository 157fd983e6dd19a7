#include "teratron/bench/bench.h"

#include <chrono>

#include "teratron/bench/kernel_profiler.h"
#include "teratron/device/device.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/engine/engine_options.h"
#include "teratron/train/guards/signals.h"
#include "teratron/train/loop/train_loop.h"
#include "teratron/train/run_info.h"

namespace teratron {

namespace {

using Clock = std::chrono::steady_clock;

// Takes each step from warm-up through timing to profiling.
class StepTimer {
 public:
  StepTimer(const TrainLoop& loop, at::Device device, const BenchOptions& options, BenchResult& result)
      : loop_(loop), device_(device), options_(options), result_(result), profiler_(device) {}

  /// After each step; false: done.
  bool operator()(const StepMetrics& step) {
    if (profiling_) return profile_step();
    if (!timing_) return start_timing(step);
    result_.seconds.push_back(step.device_seconds);
    result_.final_loss = step.losses.front().second;
    if (static_cast<int64_t>(result_.seconds.size()) < options_.steps) return true;
    result_.memory = device_memory(device_);
    if (device_.is_cpu() || options_.profiled_steps == 0) return false;
    profiler_.start();
    profiling_ = true;
    first_profiled_ = loop_.state().iteration;
    return true;
  }

 private:
  bool start_timing(const StepMetrics& step) {
    timing_ = std::chrono::duration<double>(Clock::now() - begin_).count() >= options_.warm_up_seconds;
    result_.tokens = step.tokens;
    result_.flops = step.flops;
    return true;
  }

  bool profile_step() {
    // The loop runs one step ahead of its metrics, and the profiler records that step too.
    if (loop_.state().iteration - first_profiled_ < options_.profiled_steps) return true;
    result_.profiled_steps = loop_.state().iteration - first_profiled_;
    const std::vector<KernelEvent> events = profiler_.stop();
    result_.breakdown = break_down(events);
    result_.kernels = kernel_totals(events);
    return false;
  }

  const TrainLoop& loop_;
  at::Device device_;
  BenchOptions options_;
  BenchResult& result_;
  KernelProfiler profiler_;
  Clock::time_point begin_ = Clock::now();
  bool timing_ = false;
  bool profiling_ = false;
  int64_t first_profiled_ = 0;
};

}  // namespace

std::optional<BenchResult> bench(const Arguments& args, World& world, const StopSignals& signals,
                                 const BenchOptions& options) {
  const Mesh mesh(mesh_options(args), world);
  const Registry registry;
  TrainLoop loop(args, mesh, signals, {find_family(options.family), registry});
  const at::Device device = choose_device(args);
  BenchResult result{.name = options.name,
                     .device = device_name(device),
                     .world_size = world.size(),
                     .peak_flops_per_gpu = peak_flops(device_name(device), math_mode(args)).value_or(0.0)};
  const bool reports = world.rank() == world.size() - 1;
  if (reports) loop.on_step(StepTimer(loop, device, options, result));
  loop.train();
  if (!reports) return std::nullopt;
  if (static_cast<int64_t>(result.seconds.size()) < options.steps) {
    throw config_error({.what = fmt::format("the run ended after {} of {} timed steps", result.seconds.size(),
                                            options.steps),
                        .where = "--train-iters",
                        .fix = "Raise --train-iters, or lower --steps and --warm-up-seconds"});
  }
  return result;
}

}  // namespace teratron
