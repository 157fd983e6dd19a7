#include "teratron/plan/flops.h"

#include <array>

namespace teratron {
namespace {

// Where a name contains another, the longer one is first.
constexpr std::array<Gpu, 14> gpus = {{
    {"GB300", 1250e12, 2500e12, 5000e12, 8.0e12, 277.5},
    {"GB200", 1250e12, 2500e12, 5000e12, 8.0e12, 185.0},
    {"B200", 1125e12, 2250e12, 4500e12, 8.0e12, 179.1},
    {"GH200", 494.7e12, 989.4e12, 1978.9e12, 4.0e12, 95.6},
    {"H200", 494.7e12, 989.4e12, 1978.9e12, 4.8e12, 140.4},
    {"H100 PCIe", 378e12, 756e12, 1513e12, 2.0e12, 79.6},
    {"H100 NVL", 417.5e12, 835e12, 1670e12, 3.9e12, 93.6},
    {"H100", 494.7e12, 989.4e12, 1978.9e12, 3.35e12, 79.6},
    {"H800", 494.7e12, 989.4e12, 1978.9e12, 3.35e12, 79.6},
    {"A100", 156e12, 312e12, 0.0, 2.04e12, 80.0},
    {"A800", 156e12, 312e12, 0.0, 2.04e12, 80.0},
    {"L40S", 183e12, 362e12, 733e12, 0.864e12, 45.0},
    {"V100", 15.7e12, 125e12, 0.0, 0.9e12, 32.0},
    {"T4", 8.1e12, 65e12, 0.0, 0.32e12, 15.0},
}};

}  // namespace

double training_flops(std::span<const Operator> operators, FlopsConvention convention, Weights weights) {
  double flops = 0.0;
  for (const Operator& op : operators) {
    const bool no_weight_gradient = weights == Weights::frozen && op.kind == Operator::Kind::gemm;
    const double unmasked = convention == FlopsConvention::causal ? op.flops - op.masked_flops : op.flops;
    const double forward = op.logged_flops.value_or(unmasked);
    flops += (no_weight_gradient ? 2.0 : 3.0) * forward;
  }
  return flops;
}

Throughput throughput(const MeasuredWork& work) {
  if (work.seconds <= 0.0 || work.world_size <= 0) return {};
  const double per_gpu = work.flops / (work.seconds * double(work.world_size));
  return {.tflops_per_gpu = per_gpu / 1e12,
          .mfu = work.peak_flops_per_gpu > 0.0 ? per_gpu / work.peak_flops_per_gpu : 0.0};
}

std::optional<double> Gpu::peak(MathMode mode) const {
  const double value = mode == MathMode::fp32 ? fp32 : mode == MathMode::half ? half : fp8;
  return value > 0.0 ? std::optional(value) : std::nullopt;
}

const Gpu* find_gpu(std::string_view device_name) {
  for (const Gpu& gpu : gpus) {
    if (device_name.find(gpu.name) != device_name.npos) return &gpu;
  }
  return nullptr;
}

std::string gpu_names() {
  std::string names;
  for (const Gpu& gpu : gpus) names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

std::optional<double> peak_flops(std::string_view device_name, MathMode mode) {
  const Gpu* const gpu = find_gpu(device_name);
  return gpu ? gpu->peak(mode) : std::nullopt;
}

}  // namespace teratron
