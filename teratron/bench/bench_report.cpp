#include <algorithm>

#include <nlohmann/json.hpp>

#include "teratron/bench/bench.h"
#include "teratron/plan/flops.h"

namespace teratron {

namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr size_t top_kernels = 25;
constexpr size_t name_width = 72;
constexpr double idle_hint = 0.2;  // fraction of a step

Throughput throughput_of(const BenchResult& result) {
  return throughput({.flops = result.flops,
                     .seconds = result.median_seconds(),
                     .world_size = result.world_size,
                     .peak_flops_per_gpu = result.peak_flops_per_gpu});
}

double tokens_per_second(const BenchResult& result) {
  return static_cast<double>(result.tokens) / result.median_seconds();
}

std::string breakdown_table(const BenchResult& result) {
  const auto steps = static_cast<double>(result.profiled_steps);
  const double total = result.breakdown.total_ms;
  std::string text = fmt::format("  time by category ({} profiled steps, {:.2f} ms each)\n",
                                 result.profiled_steps, total / steps);
  const auto row = [&](std::string_view name, double ms) {
    text += fmt::format("    {:<24}{:>9.2f} ms{:>7.1f} %\n", name, ms / steps, 100.0 * ms / total);
  };
  for (size_t i = 0; i < kernel_categories; ++i) {
    row(to_string(static_cast<KernelCategory>(i)), result.breakdown.ms[i]);
  }
  row("idle", result.breakdown.idle_ms);
  if (result.breakdown.idle_ms > idle_hint * total) {
    text += "    The GPU waits for the host: try larger micro-batches.\n";
  }
  text += "  top kernels\n";
  for (size_t i = 0; i < std::min(top_kernels, result.kernels.size()); ++i) {
    const KernelTotal& kernel = result.kernels[i];
    text += fmt::format("    {:>9.2f} ms{:>7.1f} x  {}\n", kernel.ms / steps,
                        static_cast<double>(kernel.calls) / steps,
                        short_kernel_name(kernel.name).substr(0, name_width));
  }
  return text;
}

}  // namespace

double BenchResult::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted.at(sorted.size() / 2);
}

std::string to_string(const BenchResult& result) {
  const Throughput speed = throughput_of(result);
  const auto [shortest, longest] = std::minmax_element(result.seconds.begin(), result.seconds.end());
  std::string text = fmt::format("bench {} on {} x {}\n", result.name, result.world_size, result.device);
  text += fmt::format("  step         {:.2f} ms, median of {} ({:.2f} to {:.2f})\n",
                      1e3 * result.median_seconds(), result.seconds.size(), 1e3 * *shortest, 1e3 * *longest);
  text += fmt::format("  tokens/s     {:.0f} ({:.0f} per rank)\n", tokens_per_second(result),
                      tokens_per_second(result) / static_cast<double>(result.world_size));
  text += fmt::format("  TFLOP/s      {:.1f} per rank (causal count)", speed.tflops_per_gpu);
  text += speed.mfu > 0.0 ? fmt::format(", MFU {:.1f} %\n", 100.0 * speed.mfu) : "\n";
  if (result.memory) {
    text += fmt::format("  memory       {:.2f} GiB peak\n",
                        static_cast<double>(result.memory->max_allocated) / gib);
  }
  text += fmt::format("  loss         {:.4f} at the last timed step\n", result.final_loss);
  if (result.profiled_steps > 0) text += breakdown_table(result);
  return text;
}

std::string to_json(const BenchResult& result) {
  const Throughput speed = throughput_of(result);
  nlohmann::json json = {{"name", result.name},
                         {"device", result.device},
                         {"world_size", result.world_size},
                         {"step_ms", 1e3 * result.median_seconds()},
                         {"steps", result.seconds.size()},
                         {"tokens_per_second", tokens_per_second(result)},
                         {"tflops_per_rank", speed.tflops_per_gpu},
                         {"mfu", speed.mfu},
                         {"loss", result.final_loss}};
  if (result.memory) {
    json["memory_bytes"] = result.memory->max_allocated;
    json["reserved_bytes"] = result.memory->max_reserved;
  }
  if (result.profiled_steps > 0) {
    const auto steps = static_cast<double>(result.profiled_steps);
    for (size_t i = 0; i < kernel_categories; ++i) {
      json["ms"][std::string(to_string(static_cast<KernelCategory>(i)))] = result.breakdown.ms[i] / steps;
    }
    json["ms"]["idle"] = result.breakdown.idle_ms / steps;
    json["ms"]["communication"] = result.breakdown.communication_ms / steps;
  }
  return json.dump();
}

}  // namespace teratron
