#include "teratron/plan/flops.h"

#include <array>

namespace teratron {
namespace {

double causal_flops(const ModelShape& m, const BatchShape& batch) {
  const double h = double(m.hidden);
  const double q = double(m.heads) * double(m.kv_channels);
  const double kv = double(m.query_groups) * double(m.kv_channels);
  const double matrices = m.swiglu ? 3.0 : 2.0;
  const double layers = double(m.layers);
  const double dense = double(m.layers - m.moe_layers);
  const double moe = double(m.moe_layers);
  const double mtp = double(m.mtp_layers);
  const double expert_width =
      double(m.moe_ffn_hidden) * double(m.moe_top_k) + double(m.moe_shared_ffn_hidden);
  const double mlp = 6.0 * h * matrices * (double(m.ffn_hidden) * dense + expert_width * moe);
  const double projections = 6.0 * layers * (h * (q + kv + kv) + q * h);
  const double prediction = 6.0 * mtp * (3.0 * h + 2.0 * h * h);
  const double logits = 6.0 * h * double(m.padded_vocab) * (1.0 + mtp);
  const double length = double(batch.sequence_length);
  const double squared = batch.squared_lengths.value_or(double(batch.samples) * length * length);
  return double(batch.samples) * length * (mlp + projections + prediction + logits) +
         6.0 * layers * q * squared;
}

double full_flops(const ModelShape& m, const BatchShape& batch) {
  const double h = double(m.hidden);
  const double q = double(m.heads) * double(m.kv_channels);
  const double length = double(batch.sequence_length);
  const double layers = double(m.layers);
  const double attention = (1.0 + double(m.query_groups) / double(m.heads) + length / h) * q / h;
  const double top_k = m.moe_layers > 0 ? double(m.moe_top_k) : 1.0;
  const double mlp = double(m.ffn_hidden) / h * top_k * (m.swiglu ? 1.5 : 1.0);
  const double logits = double(m.padded_vocab) / (2.0 * layers * h);
  return 12.0 * double(batch.samples) * length * layers * h * h * (attention + mlp + logits);
}

struct Peak {
  std::string_view name;
  double fp32;
  double half;
  double fp8;
};

// The first that the device name contains: more specific names first. 0: not supported.
constexpr std::array<Peak, 14> kPeaks = {{
    {"GB300", 1250e12, 2500e12, 5000e12},
    {"GB200", 1250e12, 2500e12, 5000e12},
    {"B200", 1125e12, 2250e12, 4500e12},
    {"H200", 494.7e12, 989.4e12, 1978.9e12},
    {"GH200", 494.7e12, 989.4e12, 1978.9e12},
    {"H100 PCIe", 378e12, 756e12, 1513e12},
    {"H100 NVL", 417.5e12, 835e12, 1670e12},
    {"H100", 494.7e12, 989.4e12, 1978.9e12},
    {"H800", 494.7e12, 989.4e12, 1978.9e12},
    {"A100", 156e12, 312e12, 0.0},
    {"A800", 156e12, 312e12, 0.0},
    {"L40S", 183e12, 362e12, 733e12},
    {"V100", 15.7e12, 125e12, 0.0},
    {"T4", 8.1e12, 65e12, 0.0},
}};

}  // namespace

double training_flops(const ModelShape& model, const BatchShape& batch, FlopsConvention convention) {
  return convention == FlopsConvention::causal ? causal_flops(model, batch) : full_flops(model, batch);
}

Throughput throughput(const MeasuredWork& work) {
  if (work.seconds <= 0.0 || work.world_size <= 0) return {};
  const double per_gpu = work.flops / (work.seconds * double(work.world_size));
  return {.tflops_per_gpu = per_gpu / 1e12,
          .mfu = work.peak_flops_per_gpu > 0.0 ? per_gpu / work.peak_flops_per_gpu : 0.0};
}

std::optional<double> peak_flops(std::string_view device_name, MathMode mode) {
  for (const Peak& peak : kPeaks) {
    if (device_name.find(peak.name) == std::string_view::npos) continue;
    const double value = mode == MathMode::fp32 ? peak.fp32 : mode == MathMode::half ? peak.half : peak.fp8;
    if (value > 0.0) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace teratron
